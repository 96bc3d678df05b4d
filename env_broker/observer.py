"""What people are told of a broker: counters, the pool's view, and a line in the log when nothing goes on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from env_broker.counters import WORKERS_LOST, Counters
from env_broker.pool_servicer import PoolServicer
from env_broker.quiet import Quiet
from env_broker.view import PoolView

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_broker.clock import Clock
    from env_broker.config import BrokerSettings
    from env_broker.dispatch import Dispatcher
    from env_broker.link import WorkerLink
    from env_broker.tasks import Errands
    from env_broker.view import LocalWorkers

log = logging.getLogger(__name__)


class Observer:
    """Sees what goes on, and changes nothing.

    Args:
        links: instance -> link of every registered worker.
        local: the broker's own workers.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        links: Mapping[str, WorkerLink],
        dispatcher: Dispatcher,
        local: LocalWorkers,
        errands: Errands,
        clock: Clock,
    ) -> None:
        self.counters: Final = Counters()
        self.quiet: Final = Quiet(settings.quiet_seconds)
        self.view: Final = PoolView(
            links=links,
            dispatcher=dispatcher,
            local=local,
            counters=self.counters,
            errands=errands,
            clock=clock,
            max_queue=settings.max_queue,
            bounds=(settings.least_workers, settings.most_workers),
        )
        self.servicer: Final = PoolServicer(self.view.take, clock)
        self._clock: Final = clock

    def lost(self, link: WorkerLink, cause: str) -> None:
        """A worker left without a goodbye."""
        self.counters.add(WORKERS_LOST)
        self.view.lost(link, cause)

    def cancel_sent(self, request_id: str) -> None:
        """A worker was asked to end that run."""
        self.quiet.cancel_sent(request_id, self._clock.now())

    def check(self) -> None:
        """Log what does not go on. Call it every second."""
        for line in self.quiet.check(self._clock.now()):
            log.log(line.level, line.text)
