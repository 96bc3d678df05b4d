"""The runs that wait for a worker. Synchronous; belongs to one event loop."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")


class QueueFullError(RuntimeError):
    """As many runs wait as may."""


class Waiter(NamedTuple, Generic[T]):
    """One place in the queue. Sorts by urgency; `order` is unique, so that nothing after it is compared."""

    rank: int
    order: int
    environment: str
    value: T


class Waiters(Generic[T]):
    """Runs that wait for a slot, by environment: higher priority first, then first come, first served.

    It knows no deadlines: a caller that gives up removes its own waiter.

    Args:
        limit: most waiters, of all environments together; those that return apart.
    """

    def __init__(self, limit: int) -> None:
        self._limit: Final = limit
        # One sorted list each, so that a waiter that leaves takes nothing behind: it is found by bisection,
        # and moving the pointers behind it is cheap at any limit that makes sense here.
        self._queues: dict[str, list[Waiter[T]]] = {}
        self._length = 0
        self._orders = 0

    def __len__(self) -> int:
        return self._length

    def count(self, environments: Iterable[str]) -> int:
        """How many wait for one of these environments."""
        return sum(len(self._queues.get(name, ())) for name in frozenset(environments))

    def order(self) -> int:
        """A place in the order of coming, behind all that were given before."""
        self._orders += 1
        return self._orders

    def push(
        self, environment: str, value: T, priority: int = 0, *, order: int = 0, returns: bool = False
    ) -> Waiter[T]:
        """Wait. `value` is the caller's own, and comes back with `pop`.

        Args:
            order: what `order` gave; 0: behind all others.
            returns: it had its turn, which came to nothing. It waits again where it was, however many wait:
                those that have come since have not taken its place.

        Raises:
            QueueFullError: `limit` is reached.
        """
        if self._length >= self._limit and not returns:
            raise QueueFullError(
                f"{self._length} runs wait for a worker, the limit is {self._limit}; send the run again later"
            )
        self._length += 1
        waiter = Waiter(-priority, order or self.order(), environment, value)
        insort(self._queues.setdefault(environment, []), waiter)
        return waiter

    def remove(self, waiter: Waiter[T]) -> bool:
        """Leave the queue. False: it was popped or removed before."""
        queue = self._queues.get(waiter.environment, [])
        index = bisect_left(queue, waiter)
        if index == len(queue) or queue[index].order != waiter.order:
            return False
        self._take(queue, index)
        return True

    def pop(self, environments: Iterable[str]) -> Waiter[T] | None:
        """The first waiter for any of these environments, taken out of the queue; None where none waits."""
        first = min((queue[0] for name in environments if (queue := self._queues.get(name))), default=None)
        return None if first is None else self._take(self._queues[first.environment], 0)

    def _take(self, queue: list[Waiter[T]], index: int) -> Waiter[T]:
        waiter = queue.pop(index)
        self._length -= 1
        if not queue:
            del self._queues[waiter.environment]
        return waiter
