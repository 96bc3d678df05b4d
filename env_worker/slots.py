"""Places for runs: so many at once, and a bounded queue by priority for those that wait."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count
from typing import Final


class QueueFullError(Exception):
    """No place is free and as many wait as may. Nothing was changed."""

    def __init__(self, waiting: int, limit: int) -> None:
        super().__init__(
            f"{waiting} runs wait for one of this worker's places, the limit is {limit}; send the run "
            "again later "
            "under a new request_id, or to another worker"
        )
        self.waiting = waiting
        self.limit = limit


class Place:
    """One run's claim: waiting, held, or given up. Made by `Slots.enter`."""

    __slots__ = ("granted", "left", "rank")

    def __init__(self, rank: tuple[int, int]) -> None:
        self.rank: Final = rank
        self.granted = asyncio.Event()
        """Set when the run may start, and when it left before that."""
        self.left = False

    def __lt__(self, other: Place) -> bool:
        return self.rank < other.rank


class Slots:
    """`capacity` places; of those that wait the highest priority comes first, then the first come. For one
    event loop."""

    def __init__(self, capacity: int, max_waiting: int) -> None:
        self.capacity: Final = capacity
        self.max_waiting: Final = max_waiting
        self.held = 0
        self.waiting = 0
        self._queue: list[Place] = []
        self._numbers = count()

    @property
    def full(self) -> bool:
        """Whether the next one would be refused."""
        return self.held >= self.capacity and self.waiting >= self.max_waiting

    def enter(self, priority: int) -> Place:
        """Claim a place: `granted` is set at once where one is free. QueueFullError where none may wait
        any more."""
        if self.full:
            raise QueueFullError(self.waiting, self.max_waiting)
        place = Place((-priority, next(self._numbers)))
        if self.held < self.capacity:
            self.held += 1
            place.granted.set()
        else:
            self.waiting += 1
            heapq.heappush(self._queue, place)
        return place

    def leave(self, place: Place) -> None:
        """Give the place back, or stop waiting for it. A second call changes nothing."""
        if place.left:
            return
        place.left = True
        if place.granted.is_set():
            self.held -= 1
        else:
            self.waiting -= 1
            place.granted.set()
            # Entries that left are dropped where they surface; a queue of mostly such ones is rebuilt.
            if len(self._queue) > 2 * self.waiting + 64:
                self._queue = [waiting for waiting in self._queue if not waiting.left]
                heapq.heapify(self._queue)
        while self._queue and self.held < self.capacity:
            waiting = heapq.heappop(self._queue)
            if not waiting.left:
                self.waiting -= 1
                self.held += 1
                waiting.granted.set()
