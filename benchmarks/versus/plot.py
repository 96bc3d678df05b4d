"""The ratios as a picture."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final

from benchmarks.versus.bars import BARS, Kind
from benchmarks.versus.figures import FIGURES
from benchmarks.versus.workloads import FETCHED, OURS, PEER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.versus.figures import Results

_PANELS: Final = (
    "episodes_per_s", "lag_max_ms", "client_bytes", "client_cpu_ms", "broker_cpu_ms", "worker_cpu_ms",
)  # fmt: skip
_COLOURS: Final = {OURS: "#2a6f97", FETCHED: "#89c2d9"}
_BAR: Final = "#c1121f"
_LEAST: Final = 1e-3
"""What is drawn for a ratio of nothing: the axes are logarithmic."""


def draw(results: Sequence[Results], path: Path) -> None:
    """A panel for each of the main figures: by workload the median ratio, a dot a round, and the bar."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(15.0, 8.5), layout="constrained")
    for axis, name in zip(axes.flat, _PANELS, strict=True):
        _panel(axis, results, name)
    figure.suptitle(
        "envtrio to the peer, same load, same run (dots: rounds; red lines: the bars, dotted where missed)"
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _panel(axis: Any, results: Sequence[Results], name: str) -> None:
    places = [(result, side) for result in results for side in result.workload.sides if side != PEER]
    drawn = [1.0]
    axis.set_yscale("log")
    for place, (result, side) in enumerate(places):
        ratios = [max(ratio, _LEAST) for ratio in result.ratios(side, name)]
        if ratios:
            drawn += ratios
            _column(axis, place, ratios, _COLOURS[side])
        else:
            axis.annotate("no data", (place, 1.0), ha="center", va="bottom", fontsize=8)
        for bar in BARS:
            wanted = (bar.workload, bar.side, bar.figure) == (result.workload.name, side, name)
            if wanted and bar.kind is not Kind.ABSOLUTE:
                drawn.append(bar.bound)
                style = "-" if result.verdict(bar) == "met" else ":"
                axis.plot([place - 0.42, place + 0.42], [bar.bound] * 2, style, color=_BAR, linewidth=2)
    names = [result.workload.name + (" fetched" if side == FETCHED else "") for result, side in places]
    axis.set_title(FIGURES[name], fontsize=10)
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set_ylim(min(drawn) / 2.0, max(drawn) * 2.0)
    axis.yaxis.set_major_formatter("{x:g}x")
    axis.yaxis.set_minor_formatter("")
    axis.set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=8)
    axis.grid(axis="y", alpha=0.3)


def _column(axis: Any, place: int, ratios: Sequence[float], colour: str) -> None:
    median = statistics.median(ratios)
    axis.bar(place, median - 1.0, bottom=1.0, width=0.65, color=colour)
    axis.plot([place] * len(ratios), ratios, "o", color="black", markersize=3, alpha=0.6)
    end, side = (max(ratios), "bottom") if median >= 1.0 else (min(ratios), "top")
    axis.annotate(
        f"{median:.2g}",
        (place, end),
        (0, 4 if median >= 1.0 else -4),
        textcoords="offset points",
        ha="center",
        va=side,
        fontsize=8,
    )
