"""What a pool that costs nothing would reach: the rounds with no pool, beside the peer's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.versus import cells
from benchmarks.versus.bars import Kind
from benchmarks.versus.figures import Spread
from benchmarks.versus.workloads import ALONE, ENCODED, FETCHED, OVERWRITTEN, PEER, TRACED, WRITTEN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.versus.bars import Bar
    from benchmarks.versus.figures import Results

_ROWS: Final[Mapping[str, str]] = {
    ALONE: "the environment alone: its arrays are cut, copied, dropped",
    TRACED: "the environment and its trace: the arrays are kept until the episode ends",
    ENCODED: "the environment and its trace, encoded once",
    OVERWRITTEN: "the environment, its trace, and the arrays written once, over older ones",
    WRITTEN: "the environment, its trace, and the arrays written once, to memory of their own",
}
_SHORT: Final[Mapping[str, str]] = {
    ALONE: "the environment alone",
    TRACED: "the environment and its trace alone",
    ENCODED: "the environment and its trace alone, encoded once,",
    OVERWRITTEN: "the environment, its trace and one writing of the arrays alone",
    WRITTEN: "the environment, its trace and one writing of the arrays to memory of their own alone",
}
_FIGURES: Final = ("episodes_per_s", "worker_cpu_ms")
"""What there is with no pool: the process stands where the worker would."""
_BUSY: Final = 0.9
"""Of a CPU: with no pool there is nothing to wait for, so who had less had it from other programs."""

TEXT: Final = """
## The ceiling

Below each saturated workload is a table of envtrio's environment **with no pool**: no broker, no client, no
stream, nobody is told; one process, as many episodes at once, in turns with the rounds of the pools. Its
ratio to the peer is where a pool with one worker would be that costs nothing beside it. Where that is short
of a bar, no change of the pool meets the bar on this machine; where it is not, what it leaves is all that a
pool may take.

- The first row is the least that the environment takes in any pool. It drops each turn's arrays at once, so
  they are written where the last ones were; the others keep them, as one must that returns an episode.
- The other rows have envtrio's own records in them: a ceiling for pools that keep those, and no law. Encoded
  once is one delta an episode, as if all of its turns were joined.
- Arrays are written by one system call an episode, in threads beside: nothing is checked, summed, sealed or
  held. Over older ones is what a keeper can do where nobody has mapped those; to memory of their own is
  what it must do where somebody may have.
- glibc is told to keep what is freed, which makes these rows cheaper than a process is by default.
"""


def headroom(results: Results) -> str:
    """A workload's table; "" where none was played."""
    ceilings = [side for side in results.workload.ceilings if side in results.rounds]
    if not ceilings:
        return ""
    lines = [
        "\n| with no pool | episodes/s | ratio | CPU, ms an episode | ratio to the peer's worker |",
        "| --- | --- | --- | --- | --- |",
    ]
    for side in ceilings:
        row = [_ROWS[side]]
        for figure in _FIGURES:
            row += [cells.spread(results.spread(side, figure))]
            row += [cells.spread(Spread.of(results.ratios(side, figure)), "x")]
        lines.append(f"| {' | '.join(row)} |")
    for side in ceilings:
        if failed := results.failures(side):
            lines.append(f"\n**{len(failed)} rounds of {_SHORT[side]} failed**: {failed[0]}")
    return "\n".join(lines) + "\n"


def reach(results: Results, bar: Bar) -> str:
    """Whether the bar could be met by a pool that costs nothing, and what it leaves for one that costs
    something. Out of reach is only what no round meets, of a process that had its CPU. By the least row
    that is short of the bar, or else by the last; "" where that was not measured.
    """
    if bar.kind is Kind.ABSOLUTE or bar.figure not in _FIGURES:
        return ""
    told = ""
    for side in results.workload.ceilings:
        # What nobody fetches may lie over older arrays.
        if side == WRITTEN and bar.side != FETCHED:
            continue
        ratios = results.ratios(side, bar.figure)
        if (found := Spread.of(ratios)) is None:
            continue
        at = f"with no pool at all, {_SHORT[side]} is at {cells.median(found, 'x')}"
        met = sum(map(bar.is_met_by, ratios))
        if bar.is_met_by(found.median):
            told = f"not out of reach: {at}{_left(results, bar, side)}"
            continue
        share = Spread.of(results.products(side, *_FIGURES))
        # CPU time is its own, whoever else has the machine; a rate is not.
        if bar.figure == "episodes_per_s" and share is not None and share.median < _BUSY * 1e3:
            return f"not told: {at}, but had {share.median / 1e3:.0%} of a CPU; measure on a quieter machine"
        if met:
            return f"**hardly in reach**: {at}, and meets the bar in {met} of {len(ratios)} rounds"
        return f"**out of reach**: {at}"
    return told


def _left(results: Results, bar: Bar, ceiling: str) -> str:
    """What a pool may add to an episode, in ms of time or of CPU, and what ours adds."""
    found = [results.spread(side, bar.figure) for side in (PEER, ceiling, bar.side)]
    peer, least, ours = (0.0 if one is None else one.median for one in found)
    if not (peer and least and ours):
        return ""
    takes = (bar.bound * peer, least, ours)
    if bar.figure == "episodes_per_s":
        takes = (1e3 / takes[0], 1e3 / takes[1], 1e3 / takes[2])
    left, added = (cells.number(time - takes[1]) for time in (takes[0], takes[2]))
    return f"; that leaves a pool {left} ms an episode, and envtrio adds {added} ms"
