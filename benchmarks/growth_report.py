"""What the growth curves say, as Markdown and as a plot."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.growth_fit import ALL, SMALL_SHARE, factors, own_cost, slope, without_own_cost
from benchmarks.growth_load import PROCESSES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.growth_fit import Point

LENGTH: Final = "turns an episode"
CONCURRENCY: Final = "runs at a time"
WORKERS: Final = "workers"
PACED: Final = "paced"
FAST: Final = "as fast as it goes"
PART: Final = "one worker alone"

_SHARED: Final = 1.3
"""What differs by more than this factor along an axis is said."""
_COLUMNS: Final = (
    "regime",
    *PROCESSES,
    "all",
    "all, a delta",
    "deltas a turn",
    "wakes a turn",
    "turns/s",
    "episodes/s",
    "client's lag, ms",
    "idle, ms/s",
)
_COLORS: Final = {"client": "tab:blue", "broker": "tab:orange", "workers": "tab:green", ALL: "black"}


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: the `points` along `axis` in one `regime`, in ascending order; `load` says what is held."""

    axis: str
    regime: str
    load: str
    points: Sequence[Point]


def table(curves: Sequence[Series]) -> str:
    """All points of one axis."""
    lines = [
        "| " + " | ".join((curves[0].axis, *_COLUMNS)) + " |",
        "| " + " | ".join("---" for _ in range(len(_COLUMNS) + 1)) + " |",
    ]
    for series in curves:
        lines.extend(_row(series, point) for point in series.points)
    return "\n".join(lines)


def sentences(series: Series) -> str:
    """Whether a turn's cost is flat, from the fitted slopes; where it is not, what goes with it."""
    points = series.points
    whole = slope(points)
    said = [
        f"**{series.regime.capitalize()}** ({series.load}), from {points[0].x:,g} to {points[-1].x:,g} "
        f"{series.axis}: **{whole.verdict}**, {whole} ({_each(points)})."
    ]
    if series.axis == LENGTH and (own := own_cost(points)).episode:
        said.append(
            f"An episode's own cost (its start, reply and confirmation) is {own.episode:,.0f} us, a turn's "
            f"{own.turn:,.0f} us: {own.turn:,.0f} + {own.episode:,.0f} / turns."
        )
        rest = without_own_cost(points, own)
        tail = slope(rest)
        said.append(
            f"From {rest[0].x:,g} turns on, where the former's share is at most "
            f"{max(SMALL_SHARE, own.share(rest[0].x)):.0%}: **{tail.verdict}**, {tail} ({_each(rest)})."
        )
    if series.axis == LENGTH and series.regime == PACED:
        last = points[-1]
        parts = ", ".join(f"{cost:,.0f}" for cost in last.costs())
        said.append(f"Window after window of one episode of {last.x:,g} turns, a turn cost {parts} us.")
    said.extend(_reasons(points))
    if series.regime == PART:
        alone = factors(points)["workers"]
        said.append(
            f"So without any other worker a turn costs a worker x{alone:.2f} where its load is only that of "
            f"one of {points[-1].x:g}: that much is not due to their number. (Client and broker have less to "
            "do here as well, so theirs do not compare.)"
        )
    if series.axis == WORKERS and series.regime == PACED:
        first, last = points[0], points[-1]
        each = (last.idle_milliseconds("workers") - first.idle_milliseconds("workers")) / (last.x - first.x)
        said.append(
            f"Beside that, when idle, each further worker spends {each:.1f} ms a second, and the broker "
            f"{first.idle_milliseconds('broker'):.1f} with {first.x:g} of them, "
            f"{last.idle_milliseconds('broker'):.1f} with {last.x:g}."
        )
    return " ".join(said)


def plot(axes: Sequence[Sequence[Series]], path: Path) -> None:
    """A panel for each axis: paced with lines, other regimes with dashes; bars from least to most."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, panels = pyplot.subplots(1, len(axes), figsize=(6 * len(axes), 5.5), sharey=True, squeeze=False)
    for panel, curves in zip(panels[0], axes, strict=True):
        for series in curves:
            dashes = "-" if series.regime == PACED else "--"
            for process, color in _COLORS.items():
                x = [point.x for point in series.points]
                middle = [point.cost(process) for point in series.points]
                below = [point.cost(process) - min(point.costs(process)) for point in series.points]
                above = [max(point.costs(process)) - point.cost(process) for point in series.points]
                label, style = f"{process or 'all'}, {series.regime}", f"o{dashes}"
                panel.errorbar(x, middle, (below, above), fmt=style, color=color, label=label, ms=3, lw=1)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xticks([point.x for point in curves[0].points])
        panel.xaxis.set_major_formatter("{x:,.0f}")
        panel.xaxis.set_minor_locator(ticker.NullLocator())
        panel.set_xlabel(curves[0].axis)
        panel.grid(alpha=0.3)
        panel.legend(fontsize="x-small", ncols=len(curves))
    panels[0][0].set_ylabel("CPU microseconds a turn")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _row(series: Series, point: Point) -> str:
    windows = point.windows
    cells = [
        f"{point.x:,g}",
        series.regime,
        *(_spread(point.costs(process)) for process in (*PROCESSES, ALL)),
        _spread(point.delta_costs()),
        f"{point.deltas_per_turn:.2f}",
        f"{point.wakes_per_turn:.1f}",
        _spread([window.turns / window.seconds for window in windows]),
        f"{statistics.median(window.episodes / window.seconds for window in windows):,.1f}",
        f"{max(1e3 * window.lag_seconds for window in windows):.1f}",
        " / ".join(f"{point.idle_milliseconds(process):.1f}" for process in PROCESSES),
    ]
    return "| " + " | ".join(cells) + " |"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def _reasons(points: Sequence[Point]) -> list[str]:
    """What changes along the axis and costs something: how many turns share a message, or a wake-up."""
    said = []
    for what, values in (
        ("deltas", [point.deltas_per_turn for point in points]),
        ("wakes", [point.wakes_per_turn for point in points]),
    ):
        if max(values) > _SHARED * max(0.0, min(values)):
            steps = ", ".join(f"{value:.2f}" for value in values)
            said.append(f"{what.capitalize()} a turn, point by point: {steps}.")
    return said


def _each(points: Sequence[Point]) -> str:
    return ", ".join(f"{process} x{change:.2f}" for process, change in factors(points).items())
