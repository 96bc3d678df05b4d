"""The figures of rounds: medians, ranges, and ratios round by round."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from benchmarks.versus.bars import Kind
from benchmarks.versus.workloads import PEER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.versus.bars import Bar
    from benchmarks.versus.workloads import Workload

FIGURES: Final[Mapping[str, str]] = {
    "episodes_per_s": "episodes/s",
    "turns_per_s": "turns/s",
    "deltas_per_s": "deltas/s",
    "deltas_per_episode": "deltas an episode",
    "delta_cpu_us": "CPU of client, broker and worker, µs a delta",
    "client_bytes": "bytes on the client's hop, received, an episode",
    "client_sent_bytes": "bytes on the client's hop, sent, an episode",
    "client_cpu_ms": "CPU of the client, ms an episode",
    "broker_cpu_ms": "CPU of the broker, ms an episode",
    "worker_cpu_ms": "CPU of the worker, ms an episode",
    "lag_p50_ms": "event-loop lag in the client, p50, ms",
    "lag_p99_ms": "event-loop lag in the client, p99, ms",
    "lag_max_ms": "event-loop lag in the client, largest, ms",
    "client_mb": "peak memory of the client, MB",
    "broker_mb": "peak memory of the broker, MB",
    "worker_mb": "peak memory of the worker, MB",
    "first_delta_p50_ms": "time to the first delta, p50, ms",
    "first_delta_p99_ms": "time to the first delta, p99, ms",
    "episode_p50_ms": "time of an episode, p50, ms",
    "abort_p50_ms": "from cancel to abort, p50, ms",
    "abort_p99_ms": "from cancel to abort, p99, ms",
    "cancelled": "runs that were cancelled in a round",
    "aborted": "of them: aborted",
    "never_began": "of them: had not begun",
    "went_on": "of them: went on for 5 s",
    "others_percent": "CPU time of other programs, % of the machine's",
    "seconds": "a round, s",
}
"""What a round is measured by, in the order of the table."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with its range."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None of none."""
        return cls(statistics.median(values), min(values), max(values)) if values else None


@dataclass
class Results:
    """All rounds of a workload: by side, each round's figures, or the reason why it has none."""

    workload: Workload
    rounds: dict[str, list[dict[str, float | None] | str]] = field(default_factory=dict)

    def add(self, side: str, result: dict[str, float | None] | str) -> None:
        """The side's next round."""
        self.rounds.setdefault(side, []).append(result)

    def spread(self, side: str, figure: str) -> Spread | None:
        """Of the rounds that have it; None where none has."""
        return Spread.of(self.figures(side, figure))

    def figures(self, side: str, figure: str) -> list[float]:
        """Of each round that has it."""
        return [value for value in self._values(side, figure) if value is not None]

    def largest(self, side: str, figure: str) -> float | None:
        """Of all rounds that have it; None where none has.

        For the event loop's largest lag, which bars are held against by the median of the rounds' ratios, as
        all of them are. Neither way is beyond doubt. The largest of a round depends on how long a round is:
        of stalls that come every few seconds, as a collector's do, short rounds mostly have none, and their
        median hides them. The largest of a run does not depend on where it is cut, and is what a user of that
        run meets; but it is one stall of each side, has no range, grows with how long each side was looked
        at, which is not as long for both, and one hiccup of the machine decides it. So it is no verdict: it
        is told beside each verdict, also where it says the contrary, and the rule is not chosen by which of
        the two is met.
        """
        return max(self.figures(side, figure), default=None)

    def ratios(self, side: str, figure: str) -> list[float]:
        """The side's to the peer's, of each round that has both; a peer's zero has no ratio."""
        return [ours / peers for ours, peers in self.together((side, figure), (PEER, figure)) if peers]

    def failures(self, side: str) -> list[str]:
        """Why rounds of that side have no figures."""
        return [result for result in self.rounds.get(side, []) if isinstance(result, str)]

    def products(self, side: str, one: str, other: str) -> list[float]:
        """The side's two figures multiplied, of each round that has both."""
        return [left * right for left, right in self.together((side, one), (side, other))]

    def together(self, *wanted: tuple[str, str]) -> list[tuple[float, ...]]:
        """By side and figure what is wanted, of each round that has all of it."""
        rounds = zip(*(self._values(side, figure) for side, figure in wanted), strict=False)
        found = (tuple(value for value in one if value is not None) for one in rounds)
        return [values for values in found if len(values) == len(wanted)]

    def held(self, bar: Bar) -> list[float]:
        """Of each round what the bar is held against."""
        if bar.kind is Kind.ABSOLUTE:
            return self.figures(bar.side, bar.figure)
        return self.ratios(bar.side, bar.figure)

    def judged(self, bar: Bar) -> Spread | None:
        """What decides; None where it was not measured."""
        return Spread.of(self.held(bar))

    def verdict(self, bar: Bar) -> str:
        """By the median "met" or "missed", or why neither. Where a round of ours failed nothing is met."""
        found = self.judged(bar)
        if failed := self.failures(bar.side):
            return f"missed: {len(failed)} rounds failed"
        if found is None:
            return "not measured"
        return "met" if bar.is_met_by(found.median) else "missed"

    def _values(self, side: str, figure: str) -> list[float | None]:
        rounds = self.rounds.get(side, [])
        return [None if isinstance(result, str) else result.get(figure) for result in rounds]
