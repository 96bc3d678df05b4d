"""Which worker a run goes to, and how it waits for one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from env_broker.outlook import RETRY_SECONDS, Outlook
from env_broker.status import Refusal, short
from env_broker.waiters import QueueFullError, Waiter, Waiters

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from env_broker.outlook import Prospects
    from env_broker.pool import Pool, Worker


@dataclass(slots=True)
class Turn:
    """A run's place in the order of coming. It keeps it where a worker that it was given comes to nothing."""

    order: int = 0
    """0 until it has come."""


class Dispatcher:
    """Gives runs slots of workers: the least busy first; what finds none waits, by priority, then in order.

    Args:
        pool: the registered workers.
        max_queue: most runs that wait.
        max_queue_bytes: most bytes that their requests have together. A request that is larger by itself
            waits only where nothing else does: it could never run otherwise.
        prospects: workers that may still come.
        may_grow: by environment, whether another worker is started for a run of it that waits because those
            there have no room for training arrays.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        max_queue: int,
        max_queue_bytes: int = 2**63,
        prospects: Prospects,
        may_grow: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._pool: Final = pool
        self._max_queue: Final = max_queue
        self._max_queue_bytes: Final = max_queue_bytes
        self._queued_bytes = 0
        self._outlook: Final = Outlook(pool, prospects, may_grow)
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

    def stranded(self, environments: Iterable[str]) -> int:
        """Those of them for which the training arrays of all that serve them leave no room."""
        return sum(
            self._waiters.count((name,)) for name in {*environments, ""} if self._outlook.is_full(name)
        )

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
        turn: Turn | None = None,
    ) -> Worker:
        """A worker with a slot taken for this run, which the caller gives back with `release`.

        Args:
            environment: empty where the pool serves exactly one.
            size: bytes of the run's request, which is held while it waits.
            timeout: seconds until the run's deadline; None: it has none.
            avoid: instances that have refused this run already; they get it only out of the queue.
            turn: the run's own, the same whenever it comes: where it comes again it waits where it did
                before, also where the queue is full by now.

        Raises:
            Refusal: DRAINING, QUEUE_FULL, ARRAY_BUDGET, ENVIRONMENT_NOT_FOUND, NO_WORKER_READY,
                INVALID_REQUEST, DEADLINE, or what `remove` gave.
        """
        if self._closed is not None:
            raise self._closed
        turn = turn or Turn()
        returns, turn.order = turn.order > 0, turn.order or self._waiters.order()
        environment = self._outlook.resolve(environment)
        if (worker := self._pool.pick(environment, avoid)) is not None:
            self._pool.acquire(worker)
            return worker
        if (refusal := self._outlook.verdict(environment)) is not None:
            raise refusal
        if len(self._waiters) and self._queued_bytes + size > self._max_queue_bytes and not returns:
            raise self._full(
                f"the requests of {len(self._waiters)} runs that wait for a worker have {self._queued_bytes} "
                f"bytes, this one has {size}, the limit is {self._max_queue_bytes}; send the run again later",
                limit=self._max_queue_bytes,
                value=self._queued_bytes + size,
            )
        place: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        try:
            waiter = self._waiters.push(environment, place, priority, order=turn.order, returns=returns)
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
        """It has refused a run for want of room for training arrays: it gets none until a heartbeat says that
        it has room. What can only wait for such workers is refused."""
        self._pool.no_room(worker.instance, because)
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
            if (refusal := self._outlook.verdict(waiter.environment)) is not None:
                self.remove(request_id, refusal)

    def close(self, refusal: Refusal) -> None:
        """Refuse every run from now on, also those that wait."""
        self._closed = refusal
        for request_id in tuple(self._waiting):
            self.remove(request_id, refusal)

    def serves_elsewhere(self, environment: str, avoid: Collection[str]) -> bool:
        """Whether a worker other than these serves it, free or not, or may come to. None whose training
        arrays leave no room."""
        return self._outlook.elsewhere(environment, avoid)

    def _give_back(self, place: asyncio.Future[Worker]) -> None:
        """The run left at the moment in which it got its slot."""
        if place.done() and not place.cancelled() and place.exception() is None:
            self.release(place.result())

    def _fill(self, worker: Worker) -> None:
        while worker.open_for_runs and worker.busy < worker.slots:
            # Runs that named no environment wait under the empty name for the only one there is.
            unnamed = ("",) if len(self._outlook.served()) == 1 else ()
            waiter = self._waiters.pop((*worker.environments, *unnamed))
            if waiter is None:
                return
            if not waiter.value.done():
                self._pool.acquire(worker)
                waiter.value.set_result(worker)

    def _full(self, what: str, *, limit: int, value: int) -> Refusal:
        return Refusal(
            "QUEUE_FULL",
            f"{what}, under a new request_id, in {RETRY_SECONDS:g} s",
            retry_after=RETRY_SECONDS,
            limit=limit,
            value=value,
        )
