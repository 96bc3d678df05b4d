"""The workers that can be given runs, and the runs that wait for one.

Synchronous and without a clock: `now` is monotonic seconds and must not run backwards. Belongs to one event
loop.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")


class PoolError(RuntimeError):
    """A slot was taken that is not free, or given back that was not taken: a bug. Nothing was changed."""


class PoolFullError(RuntimeError):
    """The pool has as many workers as it may."""


class QueueFullError(RuntimeError):
    """As many runs wait as may."""


@dataclass(slots=True, eq=False)
class Worker:
    """One worker process. Read it, and change it through the pool only."""

    instance: str
    lease: str
    address: str
    environments: frozenset[str]
    """What it serves now; empty while they are loading."""
    slots: int
    late_cancel_seconds: float
    lease_ends: float
    busy: int = 0
    """Slots taken. Counts on after the worker was removed, so that its runs may give theirs back."""
    draining: bool = False
    last_picked: int = field(default=0, repr=False)

    def takes(self, environment: str) -> bool:
        """Whether it would be given a run of that environment now."""
        return not self.draining and self.busy < self.slots and environment in self.environments


class Pool:
    """instance -> `Worker`.

    Args:
        lease_seconds: how long a worker stays without a heartbeat.
        limit: most workers.
    """

    def __init__(self, *, lease_seconds: float, limit: int = 1024) -> None:
        self._lease_seconds: Final = lease_seconds
        self._limit: Final = limit
        self._workers: dict[str, Worker] = {}
        self._picks = 0

    def __len__(self) -> int:
        return len(self._workers)

    def workers(self) -> tuple[Worker, ...]:
        """All workers, in the order in which they came."""
        return tuple(self._workers.values())

    def get(self, instance: str) -> Worker | None:
        """The worker of that instance, or None."""
        return self._workers.get(instance)

    @property
    def environments(self) -> frozenset[str]:
        """What some worker serves, whether it has a free slot or not."""
        return frozenset().union(*(worker.environments for worker in self._workers.values()))

    @property
    def late_cancel_seconds(self) -> float:
        """The largest window that a worker advertises; 0 without workers."""
        return max((worker.late_cancel_seconds for worker in self._workers.values()), default=0.0)

    def add(
        self,
        instance: str,
        lease: str,
        address: str,
        environments: Iterable[str],
        slots: int,
        late_cancel_seconds: float,
        now: float,
    ) -> Worker | None:
        """A worker registers. An instance that is here already keeps its taken slots under the new lease.

        Returns the worker that another instance at the same address displaced, or None: a process that lost
        its address is gone, and its runs are lost.

        Raises:
            ValueError: `slots` is less than 1.
            PoolFullError: `limit` is reached.
        """
        if slots < 1:
            raise ValueError(f"worker {instance[:8]} at {address} has {slots} slots; it needs at least 1")
        displaced = next(
            (
                worker
                for worker in self._workers.values()
                if worker.address == address and worker.instance != instance
            ),
            None,
        )
        if displaced is None and instance not in self._workers and len(self._workers) >= self._limit:
            raise PoolFullError(
                f"the pool has {len(self._workers)} workers, its limit is {self._limit}; worker "
                f"{instance[:8]} at {address} may try again when one has left"
            )
        if displaced is not None:
            del self._workers[displaced.instance]
        before = self._workers.get(instance)
        worker = Worker(
            instance=instance,
            lease=lease,
            address=address,
            environments=frozenset(environments),
            slots=slots,
            late_cancel_seconds=late_cancel_seconds,
            lease_ends=now + self._lease_seconds,
        )
        if before is None:
            self._workers[instance] = worker
        else:
            before.lease, before.address, before.environments = lease, address, worker.environments
            before.slots, before.late_cancel_seconds = slots, late_cancel_seconds
            before.lease_ends, before.draining = worker.lease_ends, False
        return displaced

    def heartbeat(
        self, instance: str, lease: str, now: float, *, environments: Iterable[str] | None = None
    ) -> bool:
        """Renew the lease, and say what is served if that has changed. False: that lease is over."""
        worker = self._leased(instance, lease)
        if worker is None:
            return False
        worker.lease_ends = now + self._lease_seconds
        if environments is not None:
            worker.environments = frozenset(environments)
        return True

    def remove(self, instance: str, lease: str) -> Worker | None:
        """A registration ended; the worker that left, or None: the end of an older lease means nothing."""
        worker = self._leased(instance, lease)
        return None if worker is None else self._workers.pop(worker.instance)

    def drain(self, instance: str) -> bool:
        """Give the worker no more runs. False where it is unknown."""
        worker = self._workers.get(instance)
        if worker is None:
            return False
        worker.draining = True
        return True

    def expire(self, now: float) -> list[Worker]:
        """Remove the workers whose lease is over, and return them: their runs are lost."""
        lost = [worker for worker in self._workers.values() if worker.lease_ends <= now]
        for worker in lost:
            del self._workers[worker.instance]
        return lost

    def pick(self, environment: str) -> Worker | None:
        """The worker with the smallest share of its slots taken, among equals the one picked longest ago.

        None where no worker that serves `environment` has a free slot. Takes no slot: `acquire` does, without
        an await in between.
        """
        return min(
            (worker for worker in self._workers.values() if worker.takes(environment)),
            key=lambda worker: (worker.busy / worker.slots, worker.last_picked),
            default=None,
        )

    def acquire(self, worker: Worker) -> None:
        """Take a slot of the worker that was picked. Raises PoolError where none is free."""
        if worker.busy >= worker.slots:
            raise PoolError(
                f"worker {worker.instance[:8]} has {worker.busy} of {worker.slots} slots taken; pick a "
                "worker and take its slot without waiting in between"
            )
        self._picks += 1
        worker.busy += 1
        worker.last_picked = self._picks

    def release(self, worker: Worker) -> None:
        """Give a slot back, also one of a worker that has left. Raises PoolError where none is taken."""
        if worker.busy < 1:
            raise PoolError(
                f"worker {worker.instance[:8]} has 0 of {worker.slots} slots taken; give each slot back once"
            )
        worker.busy -= 1

    def _leased(self, instance: str, lease: str) -> Worker | None:
        worker = self._workers.get(instance)
        return worker if worker is not None and worker.lease == lease else None


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
        limit: most waiters, of all environments together.
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

    def push(self, environment: str, value: T, priority: int = 0) -> Waiter[T]:
        """Wait. `value` is the caller's own, and comes back with `pop`.

        Raises:
            QueueFullError: `limit` is reached.
        """
        if self._length >= self._limit:
            raise QueueFullError(
                f"{self._length} runs wait for a worker, the limit is {self._limit}; send the run again later"
            )
        self._orders += 1
        self._length += 1
        waiter = Waiter(-priority, self._orders, environment, value)
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
