"""What the rounds themselves tell of a bar that was not met: figures, and what they are of. Causes that take
a profile to find are no figures of a round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.versus import cells
from benchmarks.versus.bars import Kind
from benchmarks.versus.figures import Spread
from benchmarks.versus.headroom import reach
from benchmarks.versus.workloads import PEER

if TYPE_CHECKING:
    from benchmarks.versus.bars import Bar
    from benchmarks.versus.figures import Results

_PROCESSES: Final = ("client", "broker", "worker")
_LONG_MS: Final = 100.0


def why(results: Results, bar: Bar) -> str:
    """What to look at where a bar is not met; of a largest lag the whole run's, also where it is.

    "" where the rounds tell no more than the table.
    """
    told = []
    if results.verdict(bar) != "met":
        told += [_missing(results, bar), _some(results, bar), reach(results, bar), *_parts(results, bar)]
    told.append(_whole_run(results, bar))
    return "; ".join(part for part in told if part)


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


def _parts(results: Results, bar: Bar) -> tuple[str, ...]:
    """What the figure is made of."""
    if bar.figure == "episodes_per_s":
        return (_busy(results, bar.side),)
    if bar.figure == "lag_max_ms":
        return _stalls(results, bar), _tail(results, bar)
    if bar.figure.endswith("_cpu_ms") and bar.kind is not Kind.ABSOLUTE:
        return _deltas(results, bar), _bytes(results, bar)
    return ()


def _busy(results: Results, side: str) -> str:
    """How much of a CPU each process had: one that has all of it is what the others wait for."""
    shares = [
        (name, Spread.of(results.products(side, f"{name}_cpu_ms", "episodes_per_s"))) for name in _PROCESSES
    ]
    told = [(share.median / 1e3, name) for name, share in shares if share is not None]
    if not told:
        return ""
    busiest = ", ".join(f"the {name} {share:.0%}" for share, name in sorted(told, reverse=True))
    return f"in the pool {busiest} of a CPU, together {sum(share for share, _ in told):.0%}"


def _whole_run(results: Results, bar: Bar) -> str:
    """The largest lag of all rounds, and what it would decide: see `Results.largest`."""
    if bar.figure != "lag_max_ms" or (ours := results.largest(bar.side, bar.figure)) is None:
        return ""
    told, held = f"of the whole run {cells.number(ours)} ms", ours
    if bar.kind is not Kind.ABSOLUTE:
        if not (peers := results.largest(PEER, bar.figure)):
            return ""
        held = ours / peers
        told += f" to the peer's {cells.number(peers)} ms, {cells.number(held)}x"
    return f"{told}: {'met' if bar.is_met_by(held) else 'missed'} by that"


def _stalls(results: Results, bar: Bar) -> str:
    """How many rounds had a stall that everybody notices: where few had, a median is of rounds without."""
    told = []
    for name, side in (("envtrio", bar.side), ("the peer", PEER)):
        rounds = results.figures(side, bar.figure)
        told.append(f"{name} in {sum(value >= _LONG_MS for value in rounds)} of {len(rounds)} rounds")
    return f"a stall of {_LONG_MS:.0f} ms or more had {', '.join(told)}"


def _tail(results: Results, bar: Bar) -> str:
    """The largest of two rounds is one stall each; how the rest of the stalls compare."""
    ours, peers = (results.spread(side, "lag_p99_ms") for side in (bar.side, PEER))
    return "" if ours is None else f"p99 is {cells.median(ours)} ms, the peer's {cells.median(peers)} ms"


def _deltas(results: Results, bar: Bar) -> str:
    """The two factors of the ratio: how many deltas, and what each costs this process."""
    sides = ((side, figure) for figure in (bar.figure, "deltas_per_episode") for side in (bar.side, PEER))
    rounds = [figures for figures in results.together(*sides) if all(figures)]
    if not rounds:
        return ""
    many = Spread.of([ours / peers for _, _, ours, peers in rounds])
    each = Spread.of([cpu / peers_cpu / (ours / peers) for cpu, peers_cpu, ours, peers in rounds])
    many_told, each_told = (cells.median(found, "x") for found in (many, each))
    told = f"{many_told} as many deltas as the peer's, each at {each_told} the CPU"
    # Which makes no deltas, and costs the same however many there are.
    return f"{told}, the environment's in it" if bar.figure == "worker_cpu_ms" else told


def _bytes(results: Results, bar: Bar) -> str:
    """How many bytes came to the client where the peer's have the arrays in them: broker and client move
    those."""
    if not results.workload.keeps or bar.figure == "worker_cpu_ms":
        return ""
    ratio = Spread.of(results.ratios(bar.side, "client_bytes"))
    peers = results.spread(PEER, "client_bytes")
    if ratio is None or peers is None:
        return ""
    megabytes = cells.number(peers.median / 1e6)
    return f"the client received {cells.median(ratio, 'x')} the peer's {megabytes} MB an episode"
