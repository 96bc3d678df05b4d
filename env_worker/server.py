"""The worker's gRPC server, and what it is made of."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_NAME
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from env_worker.array_limits import array_limits
from env_worker.arrays import servicer as array_servicer
from env_worker.arrays.limits import Home
from env_worker.arrays.metrics import MetricsServer, WorkerCollector
from env_worker.arrays.serving import ArrayServing
from env_worker.channel_options import SERVER_OPTIONS
from env_worker.exit_codes import EXIT_OK, EXIT_REFUSED, EXIT_STUCK
from env_worker.held_arrays import HeldArrays
from env_worker.hook import HookLoadError, current_hook
from env_worker.isolate.registry import load_environments
from env_worker.listening import bind, cannot_listen, check_exposure, give_up_ports
from env_worker.model.engines import Engines
from env_worker.registration import Registration
from env_worker.runner import Runner
from env_worker.servicer import SERVICE_NAME, VERSION, EnvServicer, describe_environments, method_handlers
from env_worker.sessions import Sessions
from env_worker.stopping import Stopping
from env_worker.stuck import StuckWatch
from env_worker.tasks import log_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_worker.config import WorkerSettings
    from env_worker.envs.registry import EnvironmentRegistry
    from env_worker.hook import EpisodeHook

logger = logging.getLogger(__name__)

_GRACE_SECONDS: Final = 1.0


class WorkerServer:
    """A worker that serves EnvService, TrainingArrayService, health and, on loopback, reflection.

    `start` on a running loop, then `address`; `stop` drains. One per process is usual, several in one work.

    Args:
        settings: see WorkerSettings.
        environments: what is served; None: what the settings name.
        hook: whom to hand episodes; None: the hook of `set_episode_hook`.
        local_slot: what the broker that started it wants to hear when it registers; else empty.
        clock: monotonic seconds, for windows.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        environments: EnvironmentRegistry | None = None,
        hook: EpisodeHook | None = None,
        local_slot: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings: Final = settings
        self.instance: Final = uuid.uuid4().hex
        if environments is None:
            environments = load_environments(settings.environments, settings.isolate)
        self.environments: Final = environments
        self.stop_wanted: Final = asyncio.Event()
        """Set when the worker should be stopped; see `want_stop`."""
        self.exit_code = EXIT_OK
        """See `exit_codes`; what `stop` could not wait for is in it then."""
        self.address = ""
        """HOST:PORT that is served, once started."""
        self.metrics_address = ""
        """HOST:PORT at which Prometheus finds metrics, once started; empty where `settings` ask for none."""
        self._hook: Final = hook
        self._local_slot: Final = local_slot
        self._clock: Final = clock
        self._stopping: Stopping | None = None
        self._stuck: StuckWatch | None = None
        self._runner: Runner | None = None
        self._sessions: Sessions | None = None
        self._arrays: ArrayServing | None = None
        self._metrics: MetricsServer | None = None
        self._server: grpc.aio.Server | None = None
        self._registration: Registration | None = None
        self._stop_cause = ""
        self._tasks: Final[list[asyncio.Task[None]]] = []

    @property
    def sessions(self) -> Sessions:
        """The sessions. RuntimeError before `start`."""
        if self._sessions is None:
            raise RuntimeError("the worker was not started; await start() first")
        return self._sessions

    @property
    def runner(self) -> Runner:
        """The runs. RuntimeError before `start`."""
        if self._runner is None:
            raise RuntimeError("the worker was not started; await start() first")
        return self._runner

    async def start(self) -> None:
        """Serve. ServerStartError if an address cannot be had, SettingsError if it may not be, or an extra is
        missing; HookLoadError if the hook's arrays cannot be served. Then nothing is served."""
        async with AsyncExitStack() as undo:
            await self._start(undo)
            undo.pop_all()

    async def _start(self, undo: AsyncExitStack) -> None:
        settings = self.settings
        check_exposure("--listen", settings.listen, insecure=settings.insecure)
        if settings.metrics is not None:
            check_exposure("--metrics", settings.metrics, insecure=settings.insecure)
        limits, reasons = array_limits(settings)
        server = grpc.aio.server(options=SERVER_OPTIONS)
        undo.push_async_callback(give_up_ports, server)
        host = settings.listen.rpartition(":")[0]
        try:
            self.address = f"{host}:{bind(server, settings.listen)}"
        except RuntimeError as error:
            raise cannot_listen("--listen", settings.listen, error) from error
        if settings.metrics is not None:
            metrics = self._metrics = await asyncio.to_thread(MetricsServer, settings.metrics)
            undo.push_async_callback(asyncio.to_thread, metrics.close)
            self.metrics_address = metrics.address
        hook = current_hook if self._hook is None else lambda: self._hook
        address = settings.advertised(self.address)
        arrays = self._arrays = ArrayServing(Home(self.instance, address), limits, hook, reasons)
        undo.push_async_callback(arrays.close)
        if (current := hook()) is not None:
            try:
                arrays.adopt(current)  # not only at its first run: what is wrong with it is said here
            except Exception as error:  # it may be the user's code
                raise HookLoadError(f"the hook's training arrays cannot be served: {error}") from error
        runner = self._runner = Runner(
            settings, instance=self.instance, hook=self._hook, adopt=arrays.adopt, clock=self._clock
        )
        undo.push_async_callback(runner.close)
        engines = Engines(settings)
        sessions = self._sessions = Sessions(
            runner,
            instance=self.instance,
            grace_seconds=settings.session_grace_seconds,
            clock=self._clock,
        )
        servicer = EnvServicer(
            runner,
            self.environments,
            engines,
            sessions,
            instance=self.instance,
            clock=self._clock,
            capabilities=arrays.capabilities,
        )
        array_handlers = array_servicer.method_handlers(array_servicer.TrainingArrayServicer(arrays))
        server.add_generic_rpc_handlers((method_handlers(servicer), array_handlers))
        health = health_aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        if settings.loopback:
            services = (SERVICE_NAME, array_servicer.SERVICE_NAME, HEALTH_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(services, server)
        await self._set_health(health)
        await server.start()
        self._server = server
        if self._metrics is not None:
            self._metrics.show(WorkerCollector(self.instance, VERSION, runner, arrays.stats))
            logger.info("worker=%s metrics at http://%s/metrics", self.instance[:8], self.metrics_address)
        held = HeldArrays(hook, runner.take_keepers)
        self._stopping = Stopping(settings, runner, held, worker=self.instance, clock=self._clock)
        undo.callback(self._stopping.close)
        self._stuck = StuckWatch(
            runner.environments, stuck_seconds=settings.stuck_seconds, give_up=self._give_up
        )
        undo.callback(self._stuck.close)
        health_task = asyncio.create_task(self._keep_health(health), name="health")
        health_task.add_done_callback(log_failure)
        self._tasks.append(health_task)
        undo.callback(health_task.cancel)
        if settings.broker is not None:
            self._registration = Registration(
                settings.broker,
                runner=runner,
                instance=self.instance,
                address=address,
                environments=describe_environments(self.environments, engines.default),
                local_slot=self._local_slot,
                drain=self._drain_ordered,
                held=held.read,
                detail=self._detail,
                clock=self._clock,
            )
            self._registration.start(self._refused)
        elif settings.advertise is not None:
            logger.warning(
                "--advertise is %s, but no --broker says to whom; give both, or neither", settings.advertise
            )
        logger.info(
            "worker=%s address=%s serving %s",
            self.instance[:8],
            self.address,
            ",".join(self.environments.names),
        )

    def want_stop(self, cause: str) -> None:
        """Have the worker stopped: a signal came, its broker says so or will not have it, or it is stuck.
        `cause` goes to the log and the pool's view; the first one counts."""
        self._stop_cause = self._stop_cause or cause
        self.stop_wanted.set()

    def hurry(self) -> None:
        """Skip what is left of the drain and of the stay for windows and arrays."""
        if self._stopping is not None:
            self._stopping.hurry()

    async def stop(self, *, hurry: bool = False) -> list[str]:
        """Drain, stay for open windows and held arrays, wait for hooks, stop serving: each within its bound
        of the settings. Then `exit_code` says what was lost.

        Returns the request_ids whose hooks were still at work at the end, cut to 8 digits.
        """
        if hurry:
            self.hurry()
        assert self._server is not None
        assert self._arrays is not None
        assert self._stopping is not None
        assert self._stuck is not None
        losses = await self._stopping.run(self._draining, cause=self._stop_cause)
        self.exit_code = losses.exit_code(self.exit_code)
        if self._registration is not None:
            await self._registration.close()
        self._stuck.close()
        self.sessions.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.stop(_GRACE_SECONDS)
        # Where hooks were waited for to the last, the environments have had that time too.
        await self.environments.close(0 if losses.unfinished else self.settings.kill_seconds)
        await self.runner.close()
        self._stopping.close()
        await self._arrays.close()
        if self._metrics is not None:
            await asyncio.to_thread(self._metrics.close)
        logger.info("worker=%s stopped, %s", self.instance[:8], losses)
        return losses.unfinished

    def _draining(self) -> None:
        if self._registration is not None:
            self._registration.nudge()

    def _detail(self) -> str:
        """For the pool's view: why the worker drains or refuses runs, and what blocks its environments."""
        drains = f"drains: {self._stop_cause or 'told to'}" if self.runner.draining else ""
        stays = "" if self._stopping is None else self._stopping.staying
        blocked = "" if self._stuck is None else self._stuck.blocked
        return "; ".join(part for part in (drains, stays, blocked, self.runner.no_array_room) if part)

    def _give_up(self, reason: str) -> None:
        if self.stop_wanted.is_set():
            return  # it is on its way already, for another reason
        logger.error(
            "worker=%s reason=STUCK %s; it drains and ends with exit code %d, to be replaced",
            self.instance[:8], reason, EXIT_STUCK,
        )  # fmt: skip
        self.exit_code = EXIT_STUCK
        self.want_stop("stuck")

    def _drain_ordered(self, cause: str) -> None:
        self.want_stop(f"order of the broker: {cause or 'no cause given'}")

    def _refused(self, reason: str) -> None:
        logger.error("worker=%s %s", self.instance[:8], reason)
        self.exit_code = EXIT_REFUSED
        self.want_stop("the broker refuses it")

    async def _keep_health(self, health: health_aio.HealthServicer) -> None:
        while True:
            accepting = await self._set_health(health)
            await self.runner.wait_accepting(not accepting)

    async def _set_health(self, health: health_aio.HealthServicer) -> bool:
        accepting = self.runner.accepting
        status = (
            health_pb2.HealthCheckResponse.SERVING
            if accepting
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for service in ("", SERVICE_NAME):
            await health.set(service, status)
        return accepting
