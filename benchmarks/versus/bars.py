"""What is wanted, as a table, and whether it was reached."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.versus.workloads import FETCHED, OURS

if TYPE_CHECKING:
    from collections.abc import Iterator


class Kind(enum.Enum):
    """What a bound bounds: the ratio to the peer in the same round, or the figure itself."""

    AT_LEAST = "at least"
    AT_MOST = "at most"
    ABSOLUTE = "at most, by itself"


@dataclass(frozen=True, slots=True)
class Bar:
    """`figure` of a workload's side, against `bound`."""

    workload: str
    figure: str
    kind: Kind
    bound: float
    side: str = OURS

    def is_met_by(self, value: float) -> bool:
        """Whether a median of that value, or ratio, is good enough."""
        return value >= self.bound if self.kind is Kind.AT_LEAST else value <= self.bound


LEAST_ROUNDS: Final = 3
"""Fewer judge nothing."""
EQUAL: Final = 0.98
"""Of episodes a second under a load that is the same by itself: what differs by less is noise."""


def _ratios(
    workload: str, cpu: tuple[float, float, float], *, least: float, lag: float | None, size: float | None
) -> Iterator[Bar]:
    yield Bar(workload, "episodes_per_s", Kind.AT_LEAST, least)
    for process, bound in zip(("client", "broker", "worker"), cpu, strict=True):
        yield Bar(workload, f"{process}_cpu_ms", Kind.AT_MOST, bound)
    if lag is not None:
        yield Bar(workload, "lag_max_ms", Kind.AT_MOST, lag)
    if size is not None:
        yield Bar(workload, "client_bytes", Kind.AT_MOST, size)


BARS: Final = (
    *_ratios("small", (0.25, 0.30, 0.30), least=8.0, lag=0.1, size=0.7),
    Bar("small", "broker_mb", Kind.ABSOLUTE, 80.0),
    Bar("small", "client_mb", Kind.ABSOLUTE, 120.0),
    *_ratios("chatty", (0.20, 0.20, 0.15), least=15.0, lag=0.1, size=0.5),
    *_ratios("r3-16", (0.10, 0.15, 0.30), least=12.0, lag=0.05, size=0.032),
    Bar("r3-16", "episodes_per_s", Kind.AT_LEAST, 5.0, FETCHED),
    *_ratios("r3-64", (0.10, 0.15, 0.30), least=12.0, lag=0.05, size=0.032),
    Bar("r3-64", "episodes_per_s", Kind.AT_LEAST, 5.0, FETCHED),
    *_ratios("paced-64", (0.30, 0.35, 0.30), least=EQUAL, lag=None, size=None),
    Bar("paced-64", "lag_max_ms", Kind.ABSOLUTE, 10.0),
)
