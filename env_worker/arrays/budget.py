"""How many bytes of arrays are held, and whether more may be: a table without I/O and clock."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from env_worker.arrays.errors import ArrayBudgetError, ArrayBudgetExceededError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Medium: TypeAlias = Literal["memory", "spill"]
"""Where a segment lies."""

RECENT_EPISODES: Final = 64
"""So many episodes are looked back on for the largest one."""
_MORE_STEP: Final = (
    "raise --array-memory-bytes, or give a spill folder with --array-spill-dir (local workers of a broker: "
    "ENV_WORKER_ARRAY_MEMORY_BYTES, ENV_WORKER_ARRAY_SPILL_DIR)"
)
_NEXT_STEP: Final = f"release arrays that were fetched, {_MORE_STEP}"
_SEGMENTS_STEP: Final = "release arrays that were fetched, or raise the limit of open files (ulimit -n)"
_MEDIA: Final[tuple[Medium, ...]] = ("memory", "spill")


class Room(NamedTuple):
    """What an episode takes, or what there is for more."""

    bytes: int
    segments: int


class ArrayBudget:
    """What is held never exceeds the limits, and nothing is ever evicted. Not thread-safe.

    A run reserves as much as the largest recent episode took, which may be in any of the media, but lies
    whole in one: so where all episodes stay within what their runs reserved, each finds its room.

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
        self._held: Final[Counter[Medium]] = Counter()
        self._recent: Final[deque[Room]] = deque(maxlen=RECENT_EPISODES)
        self._reserved: Final[Counter[Room]] = Counter()
        """What was the largest when each was reserved: it stays so, also when that is not recent any more."""

    @property
    def capacity(self) -> int:
        """Bytes that may be held."""
        return sum(self.limits.values())

    def held(self, medium: Medium | None = None) -> int:
        """Bytes that are held, in one medium or in both."""
        return self._held.total() if medium is None else self._held[medium]

    @property
    def reservations(self) -> int:
        """Runs that have room reserved."""
        return self._reserved.total()

    @property
    def reserved(self) -> int:
        """Bytes that the reservations stand for."""
        return self.reservations * self._largest().bytes

    @property
    def free_memory(self) -> Room:
        """What is not held, of the memory and of the segments; reservations do not count."""
        return Room(self.limits["memory"] - self._held["memory"], self.max_segments - self.segments)

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
        what = f"training arrays of {size} bytes do not fit: {self._shares()}"
        if size > max(self.limits.values()):
            raise ArrayBudgetExceededError(f"{what}, each limit is below one such trace; {_MORE_STEP}")
        raise ArrayBudgetExceededError(f"{what}; {_NEXT_STEP}")

    def free(self, medium: Medium, size: int) -> None:
        """Give back the room of one segment. ValueError if so much is not taken."""
        if not 0 <= size <= self._held[medium] or not self.segments:
            raise ValueError(f"{size} bytes of {medium} are freed, but only {self._held[medium]} are held")
        self._held[medium] -= size
        self.segments -= 1

    def note(self, size: int, segments: int) -> None:
        """An episode was kept that takes `size` bytes in so many segments."""
        self._recent.append(Room(size, segments))

    def note_failed(self, sizes: Sequence[int]) -> None:
        """An episode was not kept because its segments, of these sizes, did not fit.

        One that would not fit if nothing were held does not count: no refusal can make room for it, and all
        others would be refused for as long as it is remembered.
        """
        fits = max(sizes) <= max(self.limits.values()) and sum(sizes) <= self.capacity
        if fits and len(sizes) <= self.max_segments:
            self.note(sum(sizes), len(sizes))

    def reserve(self) -> Room:
        """Reserve room for one more run: as much as the largest recent episode took, to be given back.

        ArrayBudgetError if there is none. Where no episode came yet, only a full budget refuses.
        """
        size, segments = self._largest()
        runs = self.reservations + 1
        wanted, capacity = self.held() + self._unusable(size) + runs * size, self.capacity
        if wanted > capacity or (not size and self.held() >= capacity):
            wants = f", {size} bytes in one medium as the largest recent episode took" if size else ""
            others = f", and {runs - 1} admitted runs may take as much each" if runs > 1 else ""
            raise ArrayBudgetError(
                f"no room for the training arrays of one more run{wants}: {self._shares()}{others}; "
                f"{_NEXT_STEP}",
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
        room = Room(size, segments)
        self._reserved[room] += 1
        return room

    def unreserve(self, room: Room) -> None:
        """Give back what `reserve` has returned. ValueError if it is not open."""
        if not self._reserved[room]:
            raise ValueError(f"{room} is given back, but no such reservation is open")
        self._reserved[room] -= 1
        if not self._reserved[room]:
            del self._reserved[room]

    def _largest(self) -> Room:
        """Bytes and segments, each the most that a recent episode took or an open reservation stands for."""
        rooms = (Room(0, 0), *self._recent, *self._reserved)
        return Room(max(room.bytes for room in rooms), max(room.segments for room in rooms))

    def _unusable(self, size: int) -> int:
        """Free bytes in which no episode of `size` bytes has room: the rest of each medium. One that took
        more than any medium has lay in several."""
        free = [limit - self._held[medium] for medium, limit in self.limits.items()]
        if not size or size > max(self.limits.values()):
            return 0
        return sum(one % size for one in free)

    def _shares(self) -> str:
        return (
            " and ".join(
                f"{self._held[medium]} of {self.limits[medium]} bytes of {medium}" for medium in _MEDIA
            )
            + " are held"
        )
