"""What the rounds themselves tell of a bar that was not met. Nothing here is an opinion: causes that take a
profile to find are no figures of a round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.versus import cells
from benchmarks.versus.bars import Kind
from benchmarks.versus.figures import Spread
from benchmarks.versus.workloads import PEER

if TYPE_CHECKING:
    from benchmarks.versus.bars import Bar
    from benchmarks.versus.figures import Results

_PROCESSES: Final = ("client", "broker", "worker")


def why(results: Results, bar: Bar) -> str:
    """What to look at; "" for a bar that is met, or of which the rounds tell no more than the table."""
    if results.verdict(bar) == "met":
        return ""
    return "; ".join(
        part for part in (_missing(results, bar), _some(results, bar), _parts(results, bar)) if part
    )


def _missing(results: Results, bar: Bar) -> str:
    """Why there is nothing to judge."""
    if results.failures(bar.side):
        return ""  # the verdict says so
    if bar.kind is not Kind.ABSOLUTE and results.failures(PEER) and not results.ratios(bar.side, bar.figure):
        return "the peer's rounds failed"
    if bar.figure.endswith("_bytes") and results.spread(bar.side, bar.figure) is None:
        return "`ss` is missing, which reads what the kernel counted"
    return ""


def _some(results: Results, bar: Bar) -> str:
    """Whether it is missed by the median, or always."""
    judged = results.held(bar)
    met = sum(bar.is_met_by(value) for value in judged)
    return f"met in {met} of {len(judged)} rounds" if met else ""


def _parts(results: Results, bar: Bar) -> str:
    """What the figure is made of."""
    if bar.figure == "episodes_per_s":
        return _busy(results, bar.side)
    if bar.figure == "lag_max_ms":
        return _tail(results, bar)
    if bar.figure.endswith("_cpu_ms") and bar.kind is not Kind.ABSOLUTE:
        return _deltas(results, bar)
    return ""


def _busy(results: Results, side: str) -> str:
    """How much of a CPU each process had: one that has all of it is what the others wait for."""
    shares = [
        (name, Spread.of(results.products(side, f"{name}_cpu_ms", "episodes_per_s"))) for name in _PROCESSES
    ]
    told = [f"{name} {share.median / 1e3:.0%}" for name, share in shares if share is not None]
    return f"of a CPU took {', '.join(told)}" if told else ""


def _tail(results: Results, bar: Bar) -> str:
    """The largest of two rounds is one stall each; how the rest of the stalls compare."""
    ours, peers = (results.spread(side, "lag_p99_ms") for side in (bar.side, PEER))
    return "" if ours is None else f"p99 is {cells.median(ours)} ms, the peer's {cells.median(peers)} ms"


def _deltas(results: Results, bar: Bar) -> str:
    """The two factors of the ratio: how many deltas, and what each costs this process."""
    many = Spread.of(results.ratios(bar.side, "deltas_per_episode"))
    found = results.judged(bar)
    if many is None or found is None or not many.median:
        return ""
    cost = cells.number(found.median / many.median)
    return f"{cells.median(many, 'x')} the deltas, {cost}x the CPU of each"
