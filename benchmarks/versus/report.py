"""The results as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.versus import cells
from benchmarks.versus.bars import BARS, EQUAL, LEAST_ROUNDS, Kind
from benchmarks.versus.basis import basis
from benchmarks.versus.figures import FIGURES, Spread
from benchmarks.versus.headroom import TEXT, headroom
from benchmarks.versus.why import why
from benchmarks.versus.workloads import FETCHED, OURS, PACED_SECONDS, PEER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.versus.bars import Bar
    from benchmarks.versus.figures import Results
    from benchmarks.versus.ticker import Ticker

_HEADER: Final = """<!-- Written by `make bench`. -->
# envtrio and verifiers, measured in one run

Both sides have one broker and one worker, and a client that runs episodes and checks each; they play the same
episodes, from the same arrays, in turns: a round of one, a round of the other, and the other way round next
time. A cell has the median of its rounds, {rounds} where none failed, and their range. **A ratio is envtrio's
to the peer's**: the median of the rounds' ratios, each of two rounds side by side, with their range. Absolute
figures are this machine's.

The subject is a pool, so both have a broker also for one worker. The peer could do without: it has one by
default (an elastic pool), and serves from a single process where it is told to have one worker only. A user
of such a server pays nothing for the peer's broker.

`{command}`, {date}

| | |
| --- | --- |
{machine}

"""

_NOTES: Final = """
## How to read it

- CPU is that of all threads of a process, by its own clock. The client's has what checks an episode in it, on
  both sides; the worker's has the environment, which cuts and copies the arrays of each turn. Where arrays
  are kept, a round ends when all of them are freed, which counts, as the peer frees its own within its
  rounds; where they are fetched, so does what fetching and reading all of them takes.
- A turn is what an environment announces, a delta what the client is called with. There is one for the end
  of an episode besides, unless that was joined too.
- Bytes are those that the kernel counted on the client's TCP connections: received is what the client got,
  sent what it sent and had confirmed. Bars are on those received. In the r3 workloads the peer's have the
  arrays in them. envtrio keeps them in the worker; where they are fetched, all of them are at the end of the
  round: on the same host the worker's memory is mapped, so they cross no connection. The peer's client has
  them by then, but does not read them.
- The event loop's lag is how late a sleep of 5 ms ends. A round that is shorter sees fewer of its stalls: how
  long each side's rounds are is in the last row of a table. A bar on the largest lag is decided as any other,
  by the median of the rounds' ratios; what the largest lag of the whole run says is told beside it, also
  where it says the contrary. That one does not depend on how a run is cut into rounds, but is one stall of
  each side.
- MB are 10**6 bytes, peak memory is what was resident in a round at most. Kept arrays are memory that no
  process has mapped until it is fetched: in the r3 workloads envtrio's worker holds, besides, what the
  heading says.
- Time to the first delta is from the call of `run`. A turn that waits waits after it was announced.
- Cancelled runs count as episodes of their round. The time from cancel to abort is from the client's
  `task.cancel()` to the CancelledError in the environment.
- CPU time of other programs is what neither the side's processes had nor was left of the CPUs that they may
  use. The other side's processes wait meanwhile and are among these programs; so is what a hypervisor takes.
- Both clients run on asyncio's own event loop. What else the sides run on is in the versions.
"""


def report(
    results: Sequence[Results],
    *,
    rounds: int,
    command: str,
    date: str,
    machine: Mapping[str, str],
    versions: Mapping[str, Mapping[str, str]],
    ticker: Ticker,
    plot: str | None,
) -> str:
    """All of it. `ticker` is what the lag's meter cost; `plot` the picture's name, None: there is none."""
    told = dict(machine)
    for driver, name in ((OURS, "envtrio"), (PEER, "the peer")):
        told[name] = ", ".join(f"{package} {number}" for package, number in versions.get(driver, {}).items())
    rows = "\n".join(f"| {name} | {said} |" for name, said in told.items())
    parts = [_HEADER.format(rounds=rounds, command=command, date=date, machine=rows)]
    if rounds < LEAST_ROUNDS:
        parts.append("\n**A trial: too few rounds to judge the bars by.**\n\n")
    parts.append(_bars(results))
    if plot is not None:
        parts.append(f"\n![Ratios to the peer of every round, with the bars]({plot})\n")
    parts.append(basis(results, PACED_SECONDS, ticker))
    if any(map(headroom, results)):
        parts.append(TEXT)
    parts += [_workload(result) for result in results]
    return "".join((*parts, _NOTES))


def _bars(results: Sequence[Results]) -> str:
    by_name = {result.workload.name: result for result in results}
    held = [(bar, by_name[bar.workload]) for bar in BARS if bar.workload in by_name]
    met = sum(result.verdict(bar) == "met" for bar, result in held)
    lines = [
        "## Bars\n",
        f"{met} of {len(held)} are met. What the rounds tell of the others is in the last column.\n",
        "| workload | figure | bar | measured | | what the rounds tell |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for bar, result in held:
        found, verdict = result.judged(bar), result.verdict(bar)
        side = "" if bar.side == OURS else " (fetched)"
        measured = "" if found is None else cells.spread(found, "" if bar.kind is Kind.ABSOLUTE else "x")
        shown = verdict if verdict == "met" else f"**{verdict}**"
        lines.append(
            f"| {bar.workload}{side} | {FIGURES[bar.figure]} | {_bound(bar)} | {measured} | {shown} "
            f"| {why(result, bar)} |"
        )
    return "\n".join(lines) + "\n"


def _bound(bar: Bar) -> str:
    if bar.kind is Kind.ABSOLUTE:
        return f"at most {bar.bound:g}"
    if bar.bound == EQUAL:
        return f"equal ({bar.kind.value} {bar.bound:g}x)"
    return f"{bar.kind.value} {bar.bound:g}x"


def _workload(results: Results) -> str:
    workload = results.workload
    ours = [side for side in workload.sides if side != PEER]
    names = {OURS: "envtrio", FETCHED: "envtrio, arrays fetched"}
    heads = [
        "",
        *(names[side] for side in ours),
        "peer",
        *("ratio" if side == OURS else "ratio, fetched" for side in ours),
    ]
    counts = f"{workload.ours:,} episodes of envtrio's and {workload.peer:,} of the peer's in a round"
    if workload.keeps:
        counts += f", {workload.ours * workload.shape.array_bytes / 1e9:.1f} GB of arrays kept"
    lines = [
        f"\n## {workload.name}\n",
        f"{workload}. {counts}.\n",
        f"| {' | '.join(heads)} |",
        f"|{' --- |' * len(heads)}",
    ]
    for figure, title in FIGURES.items():
        spreads = [results.spread(side, figure) for side in (*ours, PEER)]
        if all(spread is None for spread in spreads) and not figure.endswith("_bytes"):
            continue
        ratios = [Spread.of(results.ratios(side, figure)) for side in ours]
        row = [*map(cells.spread, spreads), *(cells.spread(ratio, "x") for ratio in ratios)]
        lines.append(f"| {title} | {' | '.join(row)} |")
    for side in (*ours, PEER):
        for reason, count in _counted(results.failures(side)).items():
            name = "peer" if side == PEER else names[side]
            lines.append(f"\n**{count} rounds of {name} failed**: {reason}")
    return "\n".join(lines) + "\n" + headroom(results)


def _counted(reasons: Sequence[str]) -> dict[str, int]:
    return {reason: reasons.count(reason) for reason in reasons}
