"""Whether a cost is flat along an axis: the slope of a line through the logarithms."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.growth_load import PROCESSES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.growth_load import Window

FLAT: Final = 1.2
"""A fitted change of less than this factor, from one end of the axis to the other, is called flat."""
SMALL_SHARE: Final = 0.1
"""Of a turn's cost: what an episode's own cost may be there, if the turn's is to be seen."""
ALL: Final = ""
"""In place of a process: all of them together."""


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at `x` on the axis. `idle`: the same processes without any run."""

    x: float
    windows: Sequence[Window]
    idle: Window

    def costs(self, process: str = ALL) -> list[float]:
        """CPU microseconds a turn, window by window, without what an idle pool spends."""
        return [window.cpu_per_turn(process, self.idle) for window in self.windows]

    def cost(self, process: str = ALL) -> float:
        """Their median."""
        return statistics.median(self.costs(process))

    @property
    def wakes_per_turn(self) -> float:
        """How often a thread of any process was woken for a turn: the median of the windows."""
        return statistics.median(window.wakes_per_turn(self.idle) for window in self.windows)

    def idle_milliseconds(self, process: str) -> float:
        """CPU milliseconds a second that `process` spends without any run."""
        return 1e3 * self.idle.spent.cpu[process] / self.idle.seconds

    @property
    def deltas_per_turn(self) -> float:
        """Below 1 where several turns came in one delta."""
        return sum(window.deltas for window in self.windows) / sum(window.turns for window in self.windows)

    def delta_costs(self) -> list[float]:
        """CPU microseconds a delta, of all processes."""
        return [
            cost * window.turns / window.deltas
            for cost, window in zip(self.costs(), self.windows, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Slope:
    """cost ~ x ** `value`, give or take `error` (one standard error); `change`: the fitted cost at the last x
    over that at the first.
    """

    value: float
    error: float
    change: float

    @property
    def verdict(self) -> str:
        """ "flat", "falls", "grows", or that the line is not known well enough to say which."""
        if 1 / FLAT < self.change < FLAT:
            return "flat"
        if abs(self.value) < 2 * self.error:
            return "too noisy to say"
        return "grows" if self.change > 1 else "falls"

    def __str__(self) -> str:
        return f"slope {self.value:+.3f} ± {self.error:.3f}, x{self.change:.2f} from one end to the other"


@dataclass(frozen=True, slots=True)
class OwnCost:
    """cost of a turn ~ `turn` + `episode` / turns: microseconds."""

    turn: float
    episode: float

    def share(self, turns: float) -> float:
        """The part of a turn's cost that is its share of the episode's own."""
        return self.episode / turns / (self.turn + self.episode / turns)


def slope(points: Sequence[Point], process: str = ALL) -> Slope:
    """The line through all windows of at least two points, each at a place of its own."""
    pairs = [(np.log(point.x), _log(cost)) for point in points for cost in point.costs(process)]
    x, y = np.array(pairs).T
    spread = x - x.mean()
    value = float(spread @ y / (spread @ spread))
    left = y - y.mean() - value * spread
    freedom = max(1, len(pairs) - 2)
    error = float(np.sqrt(left @ left / freedom / (spread @ spread)))
    return Slope(value, error, float(np.exp(value * (x.max() - x.min()))))


def own_cost(points: Sequence[Point]) -> OwnCost:
    """What an episode costs beside its turns, where the axis is the number of turns.

    Relative errors count, so that the dear short episodes do not outvote the others.
    """
    pairs = [(point.x, cost) for point in points for cost in point.costs()]
    turns, cost = np.array(pairs).T
    (turn, episode), *_ = np.linalg.lstsq(
        np.stack([1 / cost, 1 / (turns * cost)], axis=1), np.ones(len(cost)), rcond=None
    )
    if turn <= 0 or episode <= 0:
        return OwnCost(float(np.median(cost)), 0.0)
    return OwnCost(float(turn), float(episode))


def without_own_cost(points: Sequence[Point], own: OwnCost) -> Sequence[Point]:
    """The points from which on an episode's own cost hardly matters: two at least."""
    chosen = [point for point in points if own.share(point.x) <= SMALL_SHARE]
    return chosen if len(chosen) >= 2 else points[-2:]


def factors(points: Sequence[Point]) -> dict[str, float]:
    """Of each process: the fitted cost at the last point over that at the first."""
    return {process: slope(points, process).change for process in PROCESSES}


def _log(cost: float) -> float:
    # A process that spends next to nothing may come out below what it spends when idle.
    return float(np.log(max(cost, 0.1)))
