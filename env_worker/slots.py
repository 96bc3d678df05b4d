"""Places for runs: so many at once, and a queue by priority, bounded in runs and in bytes, for the others."""

from __future__ import annotations

import heapq
from itertools import count
from typing import Final

from env_worker.bell import Bell


class QueueFullError(Exception):
    """No place is free and as much waits as may. Nothing was changed.

    Attributes:
        value: what there would be more than `limit` of, runs or bytes.
    """

    def __init__(self, what: str, *, value: int, limit: int) -> None:
        super().__init__(
            f"{what}, the limit is {limit}; send the run again later under a new request_id, or to another "
            "worker"
        )
        self.value = value
        self.limit = limit


class Place:
    """One run's claim: waiting, held, or given up. Made by `Slots.enter`."""

    __slots__ = ("granted", "left", "rank", "size")

    def __init__(self, rank: tuple[int, int], size: int) -> None:
        self.rank: Final = rank
        self.size: Final = size
        self.granted: Final = Bell()
        """Rung when the run may start, and when it left before that."""
        self.left = False

    def __lt__(self, other: Place) -> bool:
        return self.rank < other.rank


class Slots:
    """`capacity` places; of those that wait the highest priority comes first, then the first come. For one
    event loop.

    Args:
        max_waiting: most runs that wait.
        max_waiting_bytes: most bytes that their requests have together. A request that is larger by itself
            waits only where nothing else does: it could never run otherwise.
    """

    def __init__(self, capacity: int, max_waiting: int, max_waiting_bytes: int = 2**63) -> None:
        self.capacity: Final = capacity
        self.max_waiting: Final = max_waiting
        self.max_waiting_bytes: Final = max_waiting_bytes
        self.held = 0
        self.waiting = 0
        self.waiting_bytes = 0
        self._queue: list[Place] = []
        self._numbers = count()

    @property
    def full(self) -> bool:
        """Whether the next one would be refused, however small it is."""
        return self._fault(1) is not None

    def check(self, size: int) -> None:
        """Raises QueueFullError where a run with a request of `size` bytes could not even wait."""
        if (fault := self._fault(size)) is not None:
            raise fault

    def enter(self, priority: int, size: int = 0) -> Place:
        """Claim a place: `granted` is rung at once where one is free. QueueFullError as `check`."""
        self.check(size)
        place = Place((-priority, next(self._numbers)), size)
        if self.held < self.capacity:
            self.held += 1
            place.granted.ring()
        else:
            self.waiting += 1
            self.waiting_bytes += size
            heapq.heappush(self._queue, place)
        return place

    def leave(self, place: Place) -> None:
        """Give the place back, or stop waiting for it. A second call changes nothing."""
        if place.left:
            return
        place.left = True
        if place.granted.rung:
            self.held -= 1
        else:
            self.waiting -= 1
            self.waiting_bytes -= place.size
            place.granted.ring()
            # Entries that left are dropped where they surface; a queue of mostly such ones is rebuilt.
            if len(self._queue) > 2 * self.waiting + 64:
                self._queue = [waiting for waiting in self._queue if not waiting.left]
                heapq.heapify(self._queue)
        while self._queue and self.held < self.capacity:
            waiting = heapq.heappop(self._queue)
            if not waiting.left:
                self.waiting -= 1
                self.waiting_bytes -= waiting.size
                self.held += 1
                waiting.granted.ring()

    def _fault(self, size: int) -> QueueFullError | None:
        if self.held < self.capacity:
            return None
        if self.waiting >= self.max_waiting:
            return QueueFullError(
                f"{self.waiting} runs wait for one of this worker's places",
                value=self.waiting,
                limit=self.max_waiting,
            )
        if self.waiting and self.waiting_bytes + size > self.max_waiting_bytes:
            return QueueFullError(
                f"the requests of {self.waiting} runs that wait for one of this worker's places have "
                f"{self.waiting_bytes} bytes, this one has {size}",
                value=self.waiting_bytes + size,
                limit=self.max_waiting_bytes,
            )
        return None
