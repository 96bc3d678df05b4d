"""How many bytes of arrays are held, and whether more may be: a table without I/O and clock."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from env_worker.arrays.errors import ArrayBudgetError, ArrayBudgetExceededError

if TYPE_CHECKING:
    from collections.abc import Mapping

Medium: TypeAlias = Literal["memory", "spill"]
"""Where a segment lies."""

RECENT_EPISODES: Final = 64
"""So many episodes are looked back on for the largest one."""
_NEXT_STEP: Final = (
    "release arrays that were fetched, raise --array-memory-bytes, or give a spill folder with "
    "--array-spill-dir"
)
_SEGMENTS_STEP: Final = "release arrays that were fetched, or raise the limit of open files (ulimit -n)"
_MEDIA: Final[tuple[Medium, ...]] = ("memory", "spill")


class ArrayBudget:
    """What is held never exceeds the limits, and nothing is ever evicted. Not thread-safe.

    Segments are counted beside their bytes: each takes a descriptor of the process, and a worker that has
    none left hears no Release either.

    Args:
        memory_bytes: of segments in memory.
        spill_bytes: of segments in the spill folder.
        segments: in both.
    """

    def __init__(self, memory_bytes: int, spill_bytes: int, segments: int) -> None:
        self.limits: Final[Mapping[Medium, int]] = {"memory": memory_bytes, "spill": spill_bytes}
        """Bytes that each medium may hold."""
        self.max_segments: Final = segments
        self.segments = 0
        """How many are held."""
        self.reservations = 0
        """Runs that have room reserved."""
        self._held: Final[Counter[Medium]] = Counter()
        self._recent: Final[deque[tuple[int, int]]] = deque(maxlen=RECENT_EPISODES)

    @property
    def capacity(self) -> int:
        """Bytes that may be held."""
        return sum(self.limits.values())

    def held(self, medium: Medium | None = None) -> int:
        """Bytes that are held, in one medium or in both."""
        return self._held.total() if medium is None else self._held[medium]

    @property
    def reserved(self) -> int:
        """Bytes that the reservations stand for."""
        return self.reservations * self._largest()[0]

    def place(self, size: int) -> Medium:
        """Take room for a segment of `size` bytes, in memory if it fits there.

        Reservations do not count: what fits is kept. ArrayBudgetExceededError if it does not; nothing is
        taken then.
        """
        if self.segments >= self.max_segments:
            raise ArrayBudgetExceededError(
                f"{self.segments} segments of training arrays are held, the limit is {self.max_segments}, "
                f"most of the files that this process may open; {_SEGMENTS_STEP}"
            )
        for medium in _MEDIA:
            if self._held[medium] + size <= self.limits[medium]:
                self._held[medium] += size
                self.segments += 1
                return medium
        raise ArrayBudgetExceededError(
            f"training arrays of {size} bytes do not fit: {self._shares()}; {_NEXT_STEP}"
        )

    def free(self, medium: Medium, size: int) -> None:
        """Give back the room of one segment. ValueError if so much is not taken."""
        if not 0 <= size <= self._held[medium] or not self.segments:
            raise ValueError(f"{size} bytes of {medium} are freed, but only {self._held[medium]} are held")
        self._held[medium] -= size
        self.segments -= 1

    def note(self, size: int, segments: int) -> None:
        """An episode was kept that takes `size` bytes in so many segments."""
        self._recent.append((size, segments))

    def reserve(self) -> None:
        """Reserve room for one more run: as much as the largest recent episode took.

        ArrayBudgetError if there is none. Where no episode was kept yet, only a full budget refuses.
        """
        size, segments = self._largest()
        runs = self.reservations + 1
        wanted, capacity = self.held() + runs * size, self.capacity
        if wanted > capacity or (not size and self.held() >= capacity):
            raise ArrayBudgetError(
                f"no room for the training arrays of one more run: {self._shares()}, and for each of "
                f"{self.reservations} other runs {size} are reserved, as much as the largest recent episode "
                f"took; {_NEXT_STEP}",
                value=wanted,
                limit=capacity,
            )
        wanted = self.segments + runs * max(segments, 1)
        if wanted > self.max_segments:
            raise ArrayBudgetError(
                f"no room for the training arrays of one more run: {self.segments} segments are held and "
                f"{self.reservations} runs are reserved {max(segments, 1)} each, the limit is "
                f"{self.max_segments}, most of the files that this process may open; {_SEGMENTS_STEP}",
                value=wanted,
                limit=self.max_segments,
            )
        self.reservations = runs

    def unreserve(self) -> None:
        """Give a reservation back. ValueError if there is none."""
        if not self.reservations:
            raise ValueError("a reservation is given back, but none is open")
        self.reservations -= 1

    def _largest(self) -> tuple[int, int]:
        """Bytes and segments, each the most that one of the recent episodes took."""
        sizes, segments = zip(*self._recent, strict=True) if self._recent else ((0,), (0,))
        return max(sizes), max(segments)

    def _shares(self) -> str:
        return (
            " and ".join(
                f"{self._held[medium]} of {self.limits[medium]} bytes of {medium}" for medium in _MEDIA
            )
            + " are held"
        )
