"""A broker: its tables, its gRPC server, its workers, from start to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import uuid
from typing import TYPE_CHECKING, Final, Self

import grpc.aio
from envtrio.v1.pool_service_pb2_grpc import add_PoolServiceServicer_to_server
from envtrio.v1.registry_service_pb2_grpc import add_RegistryServiceServicer_to_server
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from env_broker.cancel import Canceller
from env_broker.client_session import ClientSessions
from env_broker.clock import Clock, MonotonicClock
from env_broker.confirm import Confirmer
from env_broker.dispatch import Dispatcher
from env_broker.link import SIZE_OPTIONS, WorkerLink
from env_broker.pool import Pool
from env_broker.registry import Registry
from env_broker.relay import Relay
from env_broker.routes import RouteTable
from env_broker.servicer import SERVICE, EnvServicer, PoolServicer
from env_broker.sessions import SessionTable
from env_broker.status import Refusal
from env_broker.supervisor import Supervisor
from env_broker.tasks import Errands, background, first_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from env_broker.config import BrokerSettings

log = logging.getLogger(__name__)

_SERVER_OPTIONS: Final = (
    *SIZE_OPTIONS,
    # A second broker on the port fails instead of getting half of the calls.
    ("grpc.so_reuseport", 0),
    # gRPC would drop calls at random, and without a reason, beyond 1,000 that its loop has not taken up yet.
    # What is too much is for admission to say.
    ("grpc.server.max_pending_requests", 1_000_000),
    ("grpc.server.max_pending_requests_hard_limit", 1_000_000),
    # Finds clients and workers that were cut off without a word.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Peers may ping as often as twice a second, or a long silent episode would end in "Too many pings".
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.keepalive_permit_without_calls", 1),
)
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


class StartError(RuntimeError):
    """The broker cannot serve; the message says why and what to do."""


class BrokerServer:
    """One broker. Use it on one event loop, once.

    Args:
        settings: how it runs.
        clock: time for leases, windows and restarts.
        worker_command: what starts `env-worker`, before its arguments; `python -m env_worker` if absent.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        clock: Clock | None = None,
        worker_command: Sequence[str] = (sys.executable, "-m", "env_worker"),
    ) -> None:
        self.instance: Final = uuid.uuid4().hex
        self._settings: Final = settings
        self._clock: Final = clock or MonotonicClock()
        self._worker_command: Final = tuple(worker_command)
        self._address = ""
        self._stopped = False
        self._changes: Final = asyncio.Event()
        self._hurry: Final = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.errands: Final = Errands()
        self.routes: Final = RouteTable()
        self.pool: Final = Pool(lease_seconds=settings.lease_seconds)
        self.supervisor: Final = Supervisor(settings.workers, clock=self._clock, on_change=self._changed)
        links: dict[str, WorkerLink] = {}
        self.dispatcher: Final = Dispatcher(
            self.pool, max_queue=settings.max_queue, prospects=self.supervisor
        )
        canceller = Canceller(
            routes=self.routes,
            links=links,
            dispatcher=self.dispatcher,
            errands=self.errands,
            clock=self._clock,
            on_taken_back=lambda request_id: self.relay.taken_back(request_id),
        )
        self.relay: Final = Relay(
            routes=self.routes,
            links=links,
            pool=self.pool,
            dispatcher=self.dispatcher,
            canceller=canceller,
            clock=self._clock,
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
            errands=self.errands,
            clock=self._clock,
            instance=self.instance,
            heartbeat_seconds=settings.heartbeat_seconds,
            lease_seconds=settings.lease_seconds,
            on_change=self._changed,
            on_local=self.supervisor.registered,
            on_held=self.sessions.expect,
        )
        self._env: Final = EnvServicer(
            relay=self.relay,
            canceller=canceller,
            sessions=self.sessions,
            links=links,
            instance=self.instance,
            max_queue=settings.max_queue,
        )
        self._links: Final = links
        self._health: Final = health_aio.HealthServicer()
        self._server: Final = grpc.aio.server(options=_SERVER_OPTIONS)

    @property
    def address(self) -> str:
        """HOST:PORT as it is bound. Empty before `start`."""
        return self._address

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
        self._server.add_generic_rpc_handlers((self._env.handler(),))
        add_RegistryServiceServicer_to_server(self._registry, self._server)
        add_PoolServiceServicer_to_server(PoolServicer(), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if self._settings.loopback:
            reflection.enable_server_reflection(_SERVICES, self._server)
        try:
            port = self._server.add_insecure_port(self._settings.listen)
        except RuntimeError as error:
            raise StartError(
                f"cannot listen on {self._settings.listen} ({error}); is another server on that port? Choose "
                "another, or port 0"
            ) from None
        self._address = f"{host}:{port}"
        await self._publish_health()
        await self._server.start()
        self._tasks = [
            background(self._keep_house(), "housekeeping"),
            background(self._keep_health(), "health"),
            background(self.sessions.keep_graces(), "graces"),
        ]
        dialled = host if host not in ("0.0.0.0", "[::]", "::") else "127.0.0.1"
        self.supervisor.start((*self._worker_command, *self._settings.worker_arguments(f"{dialled}:{port}")))

    async def stop(self) -> None:
        """Take no more runs, let those there are end, stop the local workers, stop serving.

        Idempotent. Runs get `drain_seconds`; cancels are served while the workers drain and linger.
        """
        if self._stopped:
            return
        self._stopped = True
        refusal = Refusal(
            "DRAINING", "the broker is stopping and takes no runs; send the run elsewhere or later"
        )
        self.dispatcher.close(refusal)
        self._changed()
        workers = asyncio.create_task(self.supervisor.stop(self._settings.stop_seconds))
        await first_of(self.relay.idle(), self._clock.sleep(self._settings.drain_seconds), _wait(self._hurry))
        self.relay.stop()
        # Cancels and confirmations need their workers, so they leave before the leases end.
        await first_of(self.relay.idle(), asyncio.sleep(_STOP_STEP_SECONDS))
        await first_of(self.sessions.settled(), asyncio.sleep(_STOP_STEP_SECONDS), _wait(self._hurry))
        await self.errands.close(_STOP_STEP_SECONDS)
        await workers
        self.sessions.close(refusal)
        await self._confirmer.close(_STOP_STEP_SECONDS / 3)
        self._registry.close(refusal)
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

    def _changed(self) -> None:
        """The pool or its prospects have changed."""
        self.dispatcher.reconsider()
        self._changes.set()

    async def _keep_health(self) -> None:
        while True:
            await self._changes.wait()
            self._changes.clear()
            await self._publish_health()

    async def _publish_health(self) -> None:
        """SERVING only while some worker would take a run."""
        ready = not self.dispatcher.closed and any(link.ready for link in self._links.values())
        state = (
            health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for service in ("", SERVICE):
            await self._health.set(service, state)

    async def _keep_house(self) -> None:
        while True:
            await self._clock.sleep(_HOUSEKEEPING_SECONDS)
            self.routes.expire(self._clock.now())
            self._confirmer.expire(self._clock.now())


async def serve(settings: BrokerSettings) -> None:
    """Run a broker until SIGTERM or SIGINT. A second signal hurries it.

    Raises:
        StartError: the address cannot be bound.
    """
    server = BrokerServer(settings)
    stopping = asyncio.Event()

    def on_signal() -> None:
        if stopping.is_set():
            server.hurry()
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await server.start()
    try:
        with contextlib.suppress(BrokenPipeError):  # whoever started us may not read what we say
            print(f"listening on {server.address}", flush=True)
        await stopping.wait()
        log.warning(
            "broker=%s stops: runs have %g s to finish, local workers up to %g s in all for replies that can "
            "still be taken back; a second signal ends them at once",
            server.instance[:8], settings.drain_seconds, settings.stop_seconds,
        )  # fmt: skip
    finally:
        await server.stop()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
