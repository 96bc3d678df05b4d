"""Which worker a run goes to, and how it waits for one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from env_broker.status import Refusal, short
from env_broker.waiters import QueueFullError, Waiter, Waiters

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from env_broker.pool import Pool, Worker

_RETRY_SECONDS: Final = 1.0
"""After how long a run that found the queue full should come again."""

_MOST_NAMED: Final = 3
"""Workers that cannot be reached, in one message."""


class Prospects(Protocol):
    """Workers that have not registered yet."""

    def hopeful(self) -> bool:
        """Whether one is expected to register soon."""

    def detail(self) -> str:
        """For people: why none is there. May be empty."""


class Dispatcher:
    """Gives runs slots of workers: the least busy first; what finds none waits, by priority, then in order.

    Args:
        pool: the registered workers.
        max_queue: most runs that wait.
        max_queue_bytes: most bytes that their requests have together. A request that is larger by itself
            waits only where nothing else does: it could never run otherwise.
        prospects: workers that may still come.
    """

    def __init__(
        self, pool: Pool, *, max_queue: int, max_queue_bytes: int = 2**63, prospects: Prospects
    ) -> None:
        self._pool: Final = pool
        self._max_queue: Final = max_queue
        self._max_queue_bytes: Final = max_queue_bytes
        self._queued_bytes = 0
        self._prospects: Final = prospects
        self._waiters: Final[Waiters[asyncio.Future[Worker]]] = Waiters(max_queue)
        self._waiting: dict[str, Waiter[asyncio.Future[Worker]]] = {}
        self._closed: Refusal | None = None

    @property
    def queued(self) -> int:
        """Runs that wait now."""
        return len(self._waiters)

    def queued_for(self, environments: Iterable[str]) -> int:
        """Those of them that one who serves these environments could carry."""
        return self._waiters.count((*environments, ""))

    @property
    def queued_bytes(self) -> int:
        """What their requests have together."""
        return self._queued_bytes

    @property
    def closed(self) -> bool:
        """Whether every run is refused."""
        return self._closed is not None

    async def acquire(
        self,
        request_id: str,
        environment: str,
        *,
        priority: int = 0,
        size: int = 0,
        timeout: float | None = None,
        avoid: Collection[str] = (),
    ) -> Worker:
        """A worker with a slot taken for this run, which the caller gives back with `release`.

        Args:
            environment: empty where the pool serves exactly one.
            size: bytes of the run's request, which is held while it waits.
            timeout: seconds until the run's deadline; None: it has none.
            avoid: instances that have refused this run already; they get it only out of the queue.

        Raises:
            Refusal: DRAINING, QUEUE_FULL, ARRAY_BUDGET, ENVIRONMENT_NOT_FOUND, NO_WORKER_READY,
                INVALID_REQUEST, DEADLINE, or what `remove` gave.
        """
        if self._closed is not None:
            raise self._closed
        environment = self._resolve(environment)
        if (worker := self._pool.pick(environment, avoid)) is not None:
            self._pool.acquire(worker)
            return worker
        if (refusal := self._verdict(environment)) is not None:
            raise refusal
        if len(self._waiters) and self._queued_bytes + size > self._max_queue_bytes:
            raise self._full(
                f"the requests of {len(self._waiters)} runs that wait for a worker have {self._queued_bytes} "
                f"bytes, this one has {size}, the limit is {self._max_queue_bytes}; send the run again later",
                limit=self._max_queue_bytes,
                value=self._queued_bytes + size,
            )
        place: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        try:
            waiter = self._waiters.push(environment, place, priority)
        except QueueFullError as error:
            raise self._full(str(error), limit=self._max_queue, value=len(self._waiters)) from None
        self._waiting[request_id] = waiter
        self._queued_bytes += size
        try:
            async with asyncio.timeout(timeout):
                return await place
        except TimeoutError:
            self._give_back(place)
            raise Refusal(
                "DEADLINE",
                f"run {short(request_id)} waited {timeout or 0:.3g} s for a worker, until its deadline; "
                "allow it more time or add workers",
                request_id=short(request_id),
                value=timeout,
            ) from None
        except asyncio.CancelledError:
            self._give_back(place)
            raise
        finally:
            self._waiters.remove(waiter)
            del self._waiting[request_id]
            self._queued_bytes -= size

    def release(self, worker: Worker) -> None:
        """Give a slot back, and to the first run that waits for it."""
        self._pool.release(worker)
        if self._pool.get(worker.instance) is worker:
            self._fill(worker)

    def full(self, worker: Worker, because: str) -> None:
        """It has refused a run for want of room for training arrays: until its next heartbeat it gets none.
        What can only wait for such workers is refused."""
        worker.full_because = because or "it did not say why"
        self.reconsider()

    def remove(self, request_id: str, refusal: Refusal) -> bool:
        """End a run's wait with `refusal`. False: it does not wait, or has just been given a slot."""
        waiter = self._waiting.get(request_id)
        if waiter is None or not self._waiters.remove(waiter) or waiter.value.done():
            return False
        waiter.value.set_exception(refusal)
        return True

    def reconsider(self) -> None:
        """The pool or its prospects have changed: place what can be placed, end what waits in vain."""
        for worker in self._pool.workers():
            self._fill(worker)
        for request_id, waiter in tuple(self._waiting.items()):
            if (refusal := self._verdict(waiter.environment)) is not None:
                self.remove(request_id, refusal)

    def close(self, refusal: Refusal) -> None:
        """Refuse every run from now on, also those that wait."""
        self._closed = refusal
        for request_id in tuple(self._waiting):
            self.remove(request_id, refusal)

    def serves_elsewhere(self, environment: str, avoid: Collection[str]) -> bool:
        """Whether a worker other than these serves it, free or not, or may come to. None whose training
        arrays leave no room."""
        return self._prospects.hopeful() or any(
            worker.instance not in avoid and not worker.full_because and _may_serve(worker, environment)
            for worker in self._live()
        )

    def _give_back(self, place: asyncio.Future[Worker]) -> None:
        """The run left at the moment in which it got its slot."""
        if place.done() and not place.cancelled() and place.exception() is None:
            self.release(place.result())

    def _fill(self, worker: Worker) -> None:
        while worker.open_for_runs and worker.busy < worker.slots:
            # Runs that named no environment wait under the empty name for the only one there is.
            unnamed = ("",) if len(self._served()) == 1 else ()
            waiter = self._waiters.pop((*worker.environments, *unnamed))
            if waiter is None:
                return
            if not waiter.value.done():
                self._pool.acquire(worker)
                waiter.value.set_result(worker)

    def _live(self) -> list[Worker]:
        """The workers that take runs, or may come to in a moment: not those that were dialled in vain."""
        return [w for w in self._pool.workers() if not w.draining and not w.unreachable_because]

    def _served(self) -> frozenset[str]:
        return frozenset().union(*(worker.environments for worker in self._live()))

    def _resolve(self, environment: str) -> str:
        served = self._served()
        return next(iter(served)) if not environment and len(served) == 1 else environment

    def _verdict(self, environment: str) -> Refusal | None:
        """Why a run of that environment would wait in vain; None where it may wait."""
        served = self._served()
        names = ", ".join(sorted(served))
        if environment in served or (not environment and len(served) == 1):
            return self._no_room(environment)
        if not environment and served:
            return Refusal(
                "INVALID_REQUEST",
                f"environment is empty and {len(served)} are served; name one of: {names}",
                field="environment",
                value="",
            )
        live, unreachable = self._live(), self._unreachable(environment)
        if self._prospects.hopeful() or any(not worker.environments for worker in live):
            return None
        if live and not unreachable:
            return Refusal(
                "ENVIRONMENT_NOT_FOUND",
                f"no worker serves environment {environment[:128]!r}; there are: {names}",
                field="environment",
                value=environment,
            )
        detail = "; ".join(part for part in (_unreachable(unreachable), self._prospects.detail()) if part)
        return Refusal(
            "NO_WORKER_READY",
            f"no worker takes runs{f' of environment {environment[:128]!r}' if environment else ''}: "
            f"{_registered(len(self._pool))}; send the run again when Health says SERVING",
            detail=detail,
            value=len(self._pool),
        )

    def _no_room(self, environment: str) -> Refusal | None:
        """Where the training arrays of all that serve it leave no room: only a trainer can make some."""
        workers = [worker for worker in self._live() if _may_serve(worker, environment)]
        if self._prospects.hopeful() or not all(worker.full_because for worker in workers):
            return None
        last = workers[-1]
        return Refusal(
            "ARRAY_BUDGET",
            f"no worker that takes runs{f' of environment {environment[:128]!r}' if environment else ''} has "
            "room for training arrays; release arrays that were fetched, and send the run again in "
            f"{_RETRY_SECONDS:g} s",
            detail=f"worker {short(last.instance)}: {last.full_because}",
            retry_after=_RETRY_SECONDS,
            workers=len(workers),
        )

    def _unreachable(self, environment: str) -> list[Worker]:
        """Workers that would take such a run if they could be dialled."""
        return [
            worker
            for worker in self._pool.workers()
            if worker.unreachable_because and not worker.draining and _may_serve(worker, environment)
        ]

    def _full(self, what: str, *, limit: int, value: int) -> Refusal:
        return Refusal(
            "QUEUE_FULL",
            f"{what}, under a new request_id, in {_RETRY_SECONDS:g} s",
            retry_after=_RETRY_SECONDS,
            limit=limit,
            value=value,
        )


def _may_serve(worker: Worker, environment: str) -> bool:
    """Whether it serves it, or may come to as its environments are loading; an empty name is any."""
    return not worker.environments or environment in ("", *worker.environments)


def _registered(count: int) -> str:
    """For people: so many are, and no run can be given to them."""
    if not count:
        return "none is registered"
    return "1 is registered, and does not" if count == 1 else f"{count} are registered, and none does"


def _unreachable(workers: list[Worker]) -> str:
    """For people: why they cannot be dialled."""
    return "; ".join(
        f"worker {worker.instance[:8]} cannot be reached at {worker.address}: {worker.unreachable_because}"
        for worker in workers[:_MOST_NAMED]
    )
