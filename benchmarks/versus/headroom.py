"""What a pool that costs nothing would reach: the rounds with no pool, beside the peer's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.versus import cells
from benchmarks.versus.bars import LEAST_ROUNDS, Kind
from benchmarks.versus.figures import Spread
from benchmarks.versus.workloads import ALONE, ENCODED, OVERWRITTEN, PEER, TRACED, WRITTEN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.versus.bars import Bar
    from benchmarks.versus.figures import Results

_ROWS: Final[Mapping[str, str]] = {
    ALONE: "the environment alone: its arrays are cut, copied, dropped",
    TRACED: "the environment and envtrio's trace: the arrays are kept until the episode ends",
    ENCODED: "the environment and envtrio's trace, encoded once",
    OVERWRITTEN: "the environment, envtrio's trace, and the arrays written once, over older ones",
    WRITTEN: "the environment, envtrio's trace, and the arrays written once, to memory of their own",
}
_SHORT: Final[Mapping[str, str]] = {
    ALONE: "the environment alone",
    TRACED: "the environment with envtrio's trace",
    ENCODED: "the environment with envtrio's trace, encoded once,",
    OVERWRITTEN: "the environment with envtrio's trace and one writing of the arrays over older ones",
    WRITTEN: "the environment with envtrio's trace and one writing of the arrays to memory of their own",
}
_JUDGES: Final = (ALONE, TRACED, ENCODED, WRITTEN)
"""Least first. Not `OVERWRITTEN`: a round of ours holds all of its episodes, so it has none to write over."""
_RATE: Final = "episodes_per_s"
_FIGURES: Final = (_RATE, "worker_cpu_ms")
"""What there is with no pool: the process stands where the worker would."""
_OTHERS: Final = "others_percent"
_QUIET_PERCENT: Final = 5.0
"""What other programs may have had of the machine in a round whose rate is to judge. How busy the round
itself was does not say that: some rows have one thread, some have several, and the peer waits for itself."""

TEXT: Final = f"""
## The ceiling

Below each saturated workload is a table of envtrio's environment **with no pool**: no broker, no client, no
stream, nobody is told; one process, as many episodes at once, in turns with the rounds of the pools. Its
ratio to the peer is where a pool with one worker would be that costs nothing beside what the row has.

- The first row is the environment alone: it makes each turn's arrays, drops them at once, and gives way.
  There is nothing of a pool in it, so a bar that none of its rounds meets is **out of reach** on this
  machine, of any pool that has this environment in one worker.
- The other rows have envtrio's own code in them. A bar that none of their rounds meets is **beyond envtrio's
  records as they are**: no change elsewhere in the pool meets it, while other records, or another way to
  encode or to write them, may. Encoded once is one delta an episode, as if all of its turns were joined.
  Arrays are written by one system call an episode, in threads beside: nothing is checked, summed, sealed or
  held.
- What half of the rounds or less meet is **hardly in reach**. What more of them meet is not out of reach, and
  what is left is what a pool may add: of each round the difference, then the median and the range.
- The row that writes over older arrays judges no bar: a round of envtrio's holds all of its episodes to its
  end, so next to none of its arrays can lie where others were. The row with memory of their own does.
- Rates judge only in quiet rounds: other programs had at most {_QUIET_PERCENT:g}% of the machine's CPU time,
  beside the row and beside the peer. CPU time judges in all: it is a process's own. Fewer than
  {LEAST_ROUNDS} rounds judge nothing.
- glibc is told to keep what is freed, so none of these rows pays for memory that goes and comes back.
"""


def headroom(results: Results) -> str:
    """A workload's table; "" where none was played."""
    ceilings = [side for side in results.workload.ceilings if side in results.rounds]
    if not ceilings:
        return ""
    lines = [
        "\n| with no pool | episodes/s | ratio | CPU, ms an episode | ratio to the peer's worker "
        "| CPU time of other programs, % |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for side in ceilings:
        row = [_ROWS[side]]
        for figure in _FIGURES:
            row += [cells.spread(results.spread(side, figure))]
            row += [cells.spread(Spread.of(results.ratios(side, figure)), "x")]
        row.append(cells.spread(results.spread(side, _OTHERS)))
        lines.append(f"| {' | '.join(row)} |")
    for side in ceilings:
        if failed := results.failures(side):
            lines.append(f"\n**{len(failed)} rounds of {_SHORT[side].rstrip(',')} failed**: {failed[0]}")
    return "\n".join(lines) + "\n"


def reach(results: Results, bar: Bar) -> str:
    """Whether the bar could be met by a pool that costs nothing, and what it leaves for one that costs
    something: by the least row that is short of the bar, or else by the last. "" where that was not measured.

    Out of reach is only what no round of the environment alone meets: of the others our own code is a part.
    """
    if bar.kind is Kind.ABSOLUTE or bar.figure not in _FIGURES:
        return ""
    told, alone = "", ""
    for side in _JUDGES:
        played = results.ratios(side, bar.figure)
        if side not in results.workload.ceilings or not played:
            continue
        judging = [ceiling / peer for ceiling, peer in _judging(results, bar, side, PEER)]
        met, count = sum(map(bar.is_met_by, judging)), len(judging)
        at = f"{_SHORT[side]} and nothing else is at {cells.median(Spread.of(judging or played), 'x')}"
        if count < LEAST_ROUNDS:
            return f"not told: {at}, {_too_few(bar, count, len(played))}"
        of = f"{count} rounds" if count == len(played) else f"the {count} quiet rounds of {len(played)}"
        if not met:
            word = "out of reach" if side == ALONE else "beyond envtrio's records as they are"
            return f"**{word}**: {at}, and meets the bar in none of {of}{alone}"
        if 2 * met <= count:
            word = "hardly in reach" if side == ALONE else "hardly in reach of envtrio's records as they are"
            return f"**{word}**: {at}, and meets the bar in {met} of {of}{alone}"
        if side == ALONE:
            alone = f"; the environment alone meets it, at {cells.median(Spread.of(judging), 'x')}"
        told = f"not out of reach: {at}{_left(results, bar, side)}"
    return told


def _judging(results: Results, bar: Bar, *sides: str) -> list[tuple[float, ...]]:
    """The bar's figure of each side, of the rounds that may judge: a rate is also a matter of who else had
    the machine."""
    wanted = [(side, bar.figure) for side in sides]
    if bar.figure == _RATE:
        wanted += [(side, _OTHERS) for side in sides]
    count = len(sides)
    return [
        found[:count]
        for found in results.together(*wanted)
        if all(found[:count]) and all(others <= _QUIET_PERCENT for others in found[count:])
    ]


def _too_few(bar: Bar, count: int, played: int) -> str:
    if bar.figure != _RATE:
        return f"by {count} of the {LEAST_ROUNDS} rounds that it takes to judge; measure more rounds"
    return (
        f"but only {count} of {played} rounds are known to be quiet, with at most {_QUIET_PERCENT:g}% of the "
        f"machine for other programs beside it and beside the peer; it takes {LEAST_ROUNDS}: measure more "
        "rounds, or on a quieter machine"
    )


def _left(results: Results, bar: Bar, ceiling: str) -> str:
    """What a pool may add to an episode, in ms of time or of CPU, and what ours adds: round by round."""

    def ms(value: float) -> float:
        return 1e3 / value if bar.figure == _RATE else value

    left = [ms(bar.bound * peer) - ms(least) for least, peer in _judging(results, bar, ceiling, PEER)]
    told = f"; that leaves a pool {cells.spread(Spread.of(left))} ms an episode"
    if added := [ms(ours) - ms(least) for least, ours in _judging(results, bar, ceiling, bar.side)]:
        told += f", and envtrio adds {cells.spread(Spread.of(added))} ms"
    return told
