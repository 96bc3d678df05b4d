"""A broker: its tables, its gRPC server, its workers, from start to stop."""

from __future__ import annotations

import asyncio
import sys
import uuid
from typing import TYPE_CHECKING, Final, Self

import grpc.aio
from envtrio.v1.registry_service_pb2_grpc import add_RegistryServiceServicer_to_server
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from env_broker.cancel import Canceller
from env_broker.channel_options import SERVER_OPTIONS
from env_broker.client_session import ClientSessions
from env_broker.clock import Clock, MonotonicClock
from env_broker.confirm import Confirmer
from env_broker.dial_back import Dial, DialBack, describe
from env_broker.dispatch import Dispatcher
from env_broker.elastic import Elastic
from env_broker.exit_code import EXIT_OK, EXIT_RUNS_ENDED
from env_broker.farewell import waited
from env_broker.health import PoolHealth
from env_broker.listening import bind
from env_broker.observer import Observer
from env_broker.pool import Pool
from env_broker.registry import Registry
from env_broker.relay import Relay
from env_broker.routes import RouteTable
from env_broker.servicer import SERVICE, EnvServicer
from env_broker.sessions import SessionTable
from env_broker.status import Refusal
from env_broker.supervisor import Bounds, Supervisor
from env_broker.tasks import Errands, background, first_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from env_broker.config import BrokerSettings
    from env_broker.link import WorkerLink

_SERVICES: Final = (
    SERVICE,
    "envtrio.v1.RegistryService",
    "envtrio.v1.PoolService",
    health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
    reflection.SERVICE_NAME,
)
_HOUSEKEEPING_SECONDS: Final = 1.0
_STOP_STEP_SECONDS: Final = 3.0
"""How long each step of stopping may take, once nothing is waited for on purpose."""


class BrokerServer:
    """One broker. Use it on one event loop, once.

    Args:
        settings: how it runs.
        clock: time for leases, windows and restarts.
        dial: tries to reach a worker that has registered.
        worker_command: what starts `env-worker`, before its arguments; `python -m env_worker` if absent.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        clock: Clock | None = None,
        dial: Dial = describe,
        worker_command: Sequence[str] = (sys.executable, "-m", "env_worker"),
    ) -> None:
        self.instance: Final = uuid.uuid4().hex
        self._settings: Final = settings
        self._clock: Final = clock or MonotonicClock()
        self._worker_command: Final = tuple(worker_command)
        self._address = ""
        self._stopped = False
        self._lost_before = 0
        self._hurry: Final = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.errands: Final = Errands()
        self.routes: Final = RouteTable()
        self.pool: Final = Pool(lease_seconds=settings.lease_seconds)
        self.supervisor: Final = Supervisor(
            settings.least_workers,
            clock=self._clock,
            on_change=self._changed,
            on_ended=lambda instance, how: self._registry.ended(instance, how),
            drain=lambda instance: self._registry.drain(instance, "as it was told before"),
            bounds=Bounds(settings.stuck_seconds, settings.stop_seconds, settings.kill_seconds),
        )
        links: dict[str, WorkerLink] = {}
        self._links: Final = links
        self.dispatcher: Final = Dispatcher(
            self.pool,
            max_queue=settings.max_queue,
            max_queue_bytes=settings.max_queue_bytes,
            prospects=self.supervisor,
            may_grow=lambda environment: self._elastic.may_grow(environment),
        )
        self.observer: Final = Observer(
            settings,
            links=links,
            dispatcher=self.dispatcher,
            local=self.supervisor,
            errands=self.errands,
            clock=self._clock,
        )
        dial_back = DialBack(
            clock=self._clock,
            on_change=self._changed,
            on_reached=lambda link: self._registry.reached(link),
            dial=dial,
        )
        canceller = Canceller(
            routes=self.routes,
            links=links,
            dispatcher=self.dispatcher,
            errands=self.errands,
            clock=self._clock,
            on_sent=self.observer.cancel_sent,
            on_taken_back=lambda request_id: self.relay.taken_back(request_id),
        )
        self.relay: Final = Relay(
            routes=self.routes,
            links=links,
            pool=self.pool,
            dispatcher=self.dispatcher,
            canceller=canceller,
            clock=self._clock,
            drains=lambda instance: self._registry.drains(instance),
            quiet=self.observer.quiet,
            doubt=dial_back.doubt,
            post_mortem=self.supervisor.last_words,
        )
        self._confirmer: Final = Confirmer(routes=self.routes, links=links, clock=self._clock)
        self.sessions: Final = ClientSessions(
            table=SessionTable(grace=settings.session_grace_seconds),
            pool=self.pool,
            routes=self.routes,
            confirmer=self._confirmer,
            canceller=canceller,
            clock=self._clock,
            instance=self.instance,
        )
        self._registry: Final = Registry(
            pool=self.pool,
            routes=self.routes,
            links=links,
            canceller=canceller,
            dial_back=dial_back,
            errands=self.errands,
            clock=self._clock,
            instance=self.instance,
            heartbeat_seconds=settings.heartbeat_seconds,
            lease_seconds=settings.lease_seconds,
            on_change=self._changed,
            on_local=self.supervisor.registered,
            on_draining=self.supervisor.draining,
            on_lost=self._lost,
            on_held=self.sessions.expect,
        )
        self._elastic: Final = Elastic(
            settings,
            pool=self.pool,
            dispatcher=self.dispatcher,
            supervisor=self.supervisor,
            drain=self._registry.drain,
            clock=self._clock,
        )
        self._env: Final = EnvServicer(
            relay=self.relay,
            canceller=canceller,
            sessions=self.sessions,
            links=links,
            counters=self.observer.counters,
            instance=self.instance,
            max_queue=settings.max_queue,
        )
        self._health: Final = PoolHealth(
            lambda: not self.dispatcher.closed and any(link.ready for link in links.values()), ("", SERVICE)
        )
        self._server: Final = grpc.aio.server(options=SERVER_OPTIONS)

    @property
    def address(self) -> str:
        """HOST:PORT as it is bound. Empty before `start`."""
        return self._address

    @property
    def exit_code(self) -> int:
        """What `stop` has lost, the worst of it; see exit_code."""
        runs = {EXIT_RUNS_ENDED} if self._stopped and self.relay.lost > self._lost_before else set()
        return min(self.supervisor.lost | runs, default=EXIT_OK)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Serve, then start the local workers. They register when they are ready.

        Raises:
            StartError: the address cannot be bound.
        """
        host = self._settings.listen.rpartition(":")[0]
        self._server.add_generic_rpc_handlers((self._env.handler(), self.observer.servicer.handler()))
        add_RegistryServiceServicer_to_server(self._registry, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, self._server)
        if self._settings.loopback:
            reflection.enable_server_reflection(_SERVICES, self._server)
        port = bind(self._server, self._settings.listen)
        self._address = f"{host}:{port}"
        await self._health.publish()
        await self._server.start()
        self._tasks = [
            background(self._keep_house(), "housekeeping"),
            background(self._health.keep(), "health"),
            background(self.sessions.keep_graces(), "graces"),
        ]
        if self._settings.most_workers:
            self._tasks.append(background(self._elastic.run(), "local workers"))
        dialled = host if host not in ("0.0.0.0", "[::]", "::") else "127.0.0.1"
        self.supervisor.start((*self._worker_command, *self._settings.worker_arguments(f"{dialled}:{port}")))

    async def stop(self) -> None:
        """Take no more runs, let those there are end, stop the local workers, stop serving.

        Idempotent. Runs get `drain_seconds`; cancels are served while the workers drain and linger.
        """
        if self._stopped:
            return
        self._stopped, self._lost_before = True, self.relay.lost
        refusal = Refusal(
            "DRAINING", "the broker is stopping and takes no runs; send the run elsewhere or later"
        )
        self.dispatcher.close(refusal)
        self._changed()
        workers = asyncio.create_task(self.supervisor.stop())
        draining = waited(
            self._clock, self._settings.drain_seconds, lambda: f"{len(self.observer.quiet)} runs to finish"
        )
        await first_of(self.relay.idle(), draining, _wait(self._hurry))
        self.relay.stop()
        # Cancels and confirmations need their workers, so they leave before the leases end.
        await first_of(self.relay.idle(), asyncio.sleep(_STOP_STEP_SECONDS))
        await first_of(self.sessions.settled(), asyncio.sleep(_STOP_STEP_SECONDS), _wait(self._hurry))
        await self.errands.close(_STOP_STEP_SECONDS)
        await workers
        self.sessions.close(refusal)
        await self._confirmer.close(_STOP_STEP_SECONDS / 3)
        self._registry.close(refusal)
        self.observer.servicer.close(refusal)
        await self._server.stop(_STOP_STEP_SECONDS / 2)
        await first_of(self.relay.idle(), asyncio.sleep(_STOP_STEP_SECONDS))
        await self.errands.close(_STOP_STEP_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hurry(self) -> None:
        """Cut `stop` short: runs end now, local workers do not linger."""
        self._hurry.set()
        self.supervisor.hurry()

    def _lost(self, link: WorkerLink, cause: str) -> None:
        """A worker left without a goodbye."""
        self.supervisor.lost_lease(link.worker.instance)
        self.observer.lost(link, cause)

    def _changed(self) -> None:
        """The pool or its prospects have changed."""
        self.dispatcher.reconsider()
        self.observer.view.changed()
        self._health.changed()

    async def _keep_house(self) -> None:
        while True:
            await self._clock.sleep(_HOUSEKEEPING_SECONDS)
            self.routes.expire(self._clock.now())
            self._confirmer.expire(self._clock.now())
            self.observer.check()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
