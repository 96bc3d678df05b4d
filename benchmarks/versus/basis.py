"""What the ratios rest on: how many turns each side puts into a delta, and what a delta costs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.versus import cells
from benchmarks.versus.figures import Spread
from benchmarks.versus.gauges import TICK_SECONDS
from benchmarks.versus.workloads import OURS, PEER, SETTLED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.versus.figures import Results
    from benchmarks.versus.ticker import Ticker

_ALIKE: Final = 0.1
"""By how much the numbers of deltas may differ and count as the same."""

_HEADS: Final = (
    "| workload | gives way | deltas an episode: envtrio | peer | as many "
    "| CPU, µs a delta: envtrio | peer | ratio | episodes/s, ratio "
    "| the meter's part of the client's CPU: envtrio | peer |"
)
_TEXT: Final = f"""
## What the ratios rest on

One thing in both environments is there for the comparison only: after each turn they give way to their
event loop {SETTLED} times (`settle`). That is what the peer needs to send the turn as a delta of its own,
also where the next turn is ready at once: its flush begins, its task runs, the trace is diffed, the delta
leaves. envtrio runs environments in a thread of their own, and waits a moment for more before it makes a
delta, which that thread does not wait for: it may join turns that are ready at once. **The saturated rows
with `settle` favour whoever joins**: where one side has fewer deltas than the other, part of the ratio is
that it makes and sends fewer of them for the same turns.

{{about}}Medians of the rounds. The CPU is that of client, broker and worker together and has the environment
in it; a delta that joins turns has more in it than one that does not.

The client's CPU has the meter of its event loop's lag in it, on both sides, which wakes every
{TICK_SECONDS * 1e3:g} ms. An idle event loop under envtrio's Python took {{tick}} µs of CPU more each time,
or {{second}} ms a second, measured once before the rounds. What part of the client's CPU that would be is in
the last columns; in a loop that is busy it may be another.

{_HEADS}
|{" --- |" * _HEADS.count(" | ")} --- |
"""
_ABOUT: Final[Mapping[str, str]] = {
    "small-joined": "is small without `settle`: an environment that never gives way between its turns, so\n"
    "  that the peer may join them too. It has no bars.",
    "paced-64": "is meant as the like-for-like row: a turn waits {pace} ms, as one does that waits for a\n"
    "  model, so there is nothing to join. Where both sides keep up, the load sets episodes/s.",
}


def basis(results: Sequence[Results], pace_seconds: float, ticker: Ticker) -> str:
    """The text and its table; `pace_seconds` is what a turn of the paced workloads waits, `ticker` what the
    meter of the lag costs."""
    names = [result.workload.name for result in results]
    pace = f"{pace_seconds * 1e3:g}"
    said = ((name, about.format(pace=pace)) for name, about in _ABOUT.items() if name in names)
    bullets = "".join(f"- **{name}** {about}\n" for name, about in said)
    text = _TEXT.format(
        about=bullets and f"{bullets}\n",
        tick=cells.number(ticker.tick_us),
        second=cells.number(ticker.second_ms),
    )
    return text + "".join(_row(result, ticker) + "\n" for result in results)


def _row(result: Results, ticker: Ticker) -> str:
    yields = result.workload.shape.yields
    row = [result.workload.name, f"{yields} times" if yields else "never"]
    row += [cells.median(result.spread(side, "deltas_per_episode")) for side in (OURS, PEER)]
    deltas = Spread.of(result.ratios(OURS, "deltas_per_episode"))
    row.append(_alike(deltas))
    row += [cells.median(result.spread(side, "delta_cpu_us")) for side in (OURS, PEER)]
    for figure in ("delta_cpu_us", "episodes_per_s"):
        row.append(cells.median(Spread.of(result.ratios(OURS, figure)), "x"))
    row += [_part(result, side, ticker) for side in (OURS, PEER)]
    return f"| {' | '.join(row)} |"


def _part(result: Results, side: str, ticker: Ticker) -> str:
    """Of the CPU that the client took in a second."""
    took = Spread.of(result.products(side, "client_cpu_ms", "episodes_per_s"))
    return "-" if took is None or not took.median else f"{ticker.second_ms / took.median:.1%}"


def _alike(ratio: Spread | None) -> str:
    if ratio is None:
        return "-"
    return "yes" if abs(ratio.median - 1.0) <= _ALIKE else f"no, {cells.median(ratio, 'x')}"
