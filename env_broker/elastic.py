"""Looks after the local workers: kills what is held, and sizes the pool by its load."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from env_broker.scale import Local, Scale
from env_broker.status import short

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_broker.clock import Clock
    from env_broker.config import BrokerSettings
    from env_broker.dispatch import Dispatcher
    from env_broker.pool import Pool
    from env_broker.supervisor import Supervisor

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.25


class Elastic:
    """Looks several times a second. In a static pool it only kills what is held.

    Args:
        drain: gives the worker of that instance no more runs and tells it why to drain; False where it is not
            registered.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        pool: Pool,
        dispatcher: Dispatcher,
        supervisor: Supervisor,
        drain: Callable[[str, str], bool],
        clock: Clock,
    ) -> None:
        self._pool: Final = pool
        self._dispatcher: Final = dispatcher
        self._supervisor: Final = supervisor
        self._drain: Final = drain
        self._clock: Final = clock
        self._idle_seconds: Final = settings.idle_seconds
        self._most: Final = settings.most_workers
        self._is_static: Final = settings.least_workers == settings.most_workers
        self._served: frozenset[str] = frozenset()
        """What local workers serve; empty while that is not known."""
        self._scale: Final = Scale(
            least=settings.least_workers,
            most=settings.most_workers,
            idle_seconds=settings.idle_seconds,
            heartbeat_seconds=settings.heartbeat_seconds,
            slots=settings.max_concurrent,
        )

    async def run(self) -> None:
        """Look, until cancelled."""
        while True:
            await self._clock.sleep(_LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Decide once, and do it: synchronous, so that nothing is given to a worker that is to be drained."""
        workers, supervisor = self._pool.workers(), self._supervisor
        supervisor.look({worker.instance for worker in workers})
        if self._is_static or self._dispatcher.closed:
            return
        local = Local(
            supervisor.instances,
            supervisor.size,
            supervisor.starting,
            supervisor.failing,
            supervisor.leaving,
        )
        own = [worker for worker in workers if worker.instance in local.instances]
        self._served = frozenset().union(*(worker.environments for worker in own)) or self._served
        shared = [
            worker
            for worker in workers
            if worker in own or not self._served or self._served & worker.environments
        ]
        queued = self._dispatcher.queued_for(self._served) if self._served else self._dispatcher.queued
        stranded = self._dispatcher.stranded(self._served)
        decision = self._scale.decide(self._clock.now(), shared, local, queued, stranded)
        self._pool.spare(decision.spare)
        if decision.grow:
            log.info(
                "pool grows by %d to %d local workers: of %d slots %d are taken, %d runs wait, %d workers "
                "have no room for training arrays, %d have lost their lease",
                decision.grow, local.size + decision.grow, sum(worker.slots for worker in shared),
                sum(worker.taken for worker in shared), queued,
                sum(bool(worker.full_because) for worker in shared), local.size - local.starting - len(own),
            )  # fmt: skip
            supervisor.grow(decision.grow)
        elif decision.give_up_start:
            supervisor.give_up_start()
        elif decision.drain:
            log.info("pool shrinks to %d local workers", local.size - 1)
            self.retire(decision.drain, f"it had nothing to do for {self._idle_seconds:g} s")

    def may_grow(self, environment: str) -> bool:
        """Whether the next look starts another worker for a run of that environment that waits because those
        there have no room for training arrays. Not while one starts: what is known of that is better."""
        supervisor = self._supervisor
        return (
            not (self._is_static or self._dispatcher.closed or supervisor.starting)
            and supervisor.size < self._most
            and bool(self._served)
            and environment in ("", *self._served)
        )

    def retire(self, instance: str, cause: str) -> None:
        """Drain a local worker without replacing it."""
        if self._drain(instance, cause) and self._supervisor.retire(instance):
            log.info("worker=%s is told to drain: %s", short(instance), cause)
