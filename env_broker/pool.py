"""The workers that can be given runs.

Synchronous and without a clock: `now` is monotonic seconds and must not run backwards. Belongs to one event
loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class PoolError(RuntimeError):
    """A slot was taken that is not free, or given back that was not taken: a bug. Nothing was changed."""


class PoolFullError(RuntimeError):
    """The pool has as many workers as it may."""


class Load(NamedTuple):
    """What a heartbeat says of a worker, whoever its callers are."""

    running: int = 0
    """Runs that it has, waiting ones included."""
    open_windows: int = 0
    """Replies that can still be taken back."""
    held_arrays: int = 0
    """Episodes whose training arrays are held."""
    held_array_bytes: int = 0
    loop_lag_millis: float = 0.0


NO_LOAD: Final = Load()


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
    spared: bool = False
    """It gets runs only where no other has room: the pool could do without it."""
    reachable: bool = True
    """Whether it can be dialled at `address`; see `DialBack`, which changes it and the next."""
    unreachable_because: str = ""
    """Why it cannot; empty also while nobody has found out yet."""
    full_because: str = ""
    """Why it has no room for training arrays, by a run that it refused or by its last heartbeat; empty where
    it has some. It gets no runs until a heartbeat says that."""
    load: Load = NO_LOAD
    """As of the last heartbeat."""
    reported_at: float | None = None
    """When that heartbeat came; None while this lease has had none."""
    says: str = ""
    """For people, by that heartbeat: why it drains, or what blocks it; may be empty."""
    foreign: int = 0
    """Runs that it had then beyond those of this pool: of callers that dialled it themselves."""
    most_busy: int = field(default=0, repr=False)
    """Most slots taken at once since the last heartbeat: what the next one counts may have ended before it
    comes."""
    last_picked: int = field(default=0, repr=False)

    @property
    def taken(self) -> int:
        """Slots taken by whomever, as far as it is known here; may be more than it has."""
        return self.busy + self.foreign

    def takes(self, environment: str) -> bool:
        """Whether it would be given a run of that environment now."""
        return self.open_for_runs and self.busy < self.slots and environment in self.environments

    @property
    def open_for_runs(self) -> bool:
        """Whether it would be given a run if it had a free slot."""
        return self.reachable and not (self.draining or self.full_because)


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
    ) -> Worker:
        """A worker registers. An instance that is here already keeps its taken slots under the new lease.

        That another one is here with the same address is only a question until somebody has dialled it; see
        `displace`.

        Raises:
            ValueError: `slots` is less than 1.
            PoolFullError: `limit` is reached.
        """
        if slots < 1:
            raise ValueError(f"worker {instance[:8]} at {address} has {slots} slots; it needs at least 1")
        if instance not in self._workers and len(self._workers) >= self._limit:
            raise PoolFullError(
                f"the pool has {len(self._workers)} workers, its limit is {self._limit}; worker "
                f"{instance[:8]} at {address} may try again when one has left"
            )
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
            return worker
        before.lease, before.address, before.environments = lease, address, worker.environments
        before.slots, before.late_cancel_seconds = slots, late_cancel_seconds
        before.lease_ends, before.draining = worker.lease_ends, False
        before.load, before.reported_at, before.foreign, before.says = worker.load, None, 0, ""
        before.full_because = ""
        return before

    def displace(self, instance: str) -> list[Worker]:
        """This worker answers at its address. Remove the others that say they are there, and return them: a
        process that lost its address is gone, and its runs are lost."""
        there = self._workers.get(instance)
        gone = (
            []
            if there is None
            else [
                worker
                for worker in self._workers.values()
                if worker.address == there.address and worker is not there
            ]
        )
        for worker in gone:
            del self._workers[worker.instance]
        return gone

    def heartbeat(
        self,
        instance: str,
        lease: str,
        now: float,
        *,
        load: Load = NO_LOAD,
        environments: Iterable[str] | None = None,
        says: str = "",
    ) -> bool:
        """Renew the lease, note the load, and say what is served if that has changed. False: that lease is
        over."""
        worker = self._leased(instance, lease)
        if worker is None:
            return False
        worker.lease_ends = now + self._lease_seconds
        worker.load, worker.reported_at, worker.says = load, now, says
        worker.foreign, worker.most_busy = max(0, load.running - worker.most_busy), worker.busy
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

    def no_room(self, instance: str, because: str) -> bool:
        """The worker says that it has no room for training arrays: give it no runs. True where it had some
        until now."""
        worker = self._workers.get(instance)
        if worker is None:
            return False
        before, worker.full_because = worker.full_because, because or "it did not say why"
        return not before

    def relent(self, instance: str) -> bool:
        """The worker does not say, with a heartbeat, that it has no room for training arrays. True where it
        had none until now."""
        worker = self._workers.get(instance)
        if worker is None or not worker.full_because:
            return False
        worker.full_because = ""
        return True

    def spare(self, instance: str) -> None:
        """Give that worker runs only where no other has room; nobody where `instance` is empty."""
        for worker in self._workers.values():
            worker.spared = worker.instance == instance

    def expire(self, now: float) -> list[Worker]:
        """Remove the workers whose lease is over, and return them: their runs are lost."""
        lost = [worker for worker in self._workers.values() if worker.lease_ends <= now]
        for worker in lost:
            del self._workers[worker.instance]
        return lost

    def pick(self, environment: str, avoid: Collection[str] = ()) -> Worker | None:
        """The worker with the smallest share of its slots taken, by whomever; among equals the one picked
        longest ago. One that is spared comes last.

        None where no worker that serves `environment` has a free slot, those of `avoid` apart. Takes no slot:
        `acquire` does, without an await in between.
        """
        return min(
            (w for w in self._workers.values() if w.takes(environment) and w.instance not in avoid),
            key=lambda worker: (worker.spared, worker.taken / worker.slots, worker.last_picked),
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
        worker.most_busy = max(worker.most_busy, worker.busy)
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
