"""The worker's gRPC server, and what it is made of."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
import uuid
from typing import TYPE_CHECKING, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_NAME
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from env_worker.channel_options import SERVER_OPTIONS
from env_worker.config import SettingsError, WorkerSettings
from env_worker.exit_codes import EXIT_OK, EXIT_REFUSED, EXIT_STUCK
from env_worker.held_arrays import HeldArrays
from env_worker.hook import current_hook, load_hook, set_episode_hook
from env_worker.isolate.registry import load_environments
from env_worker.listening import bind
from env_worker.model.simulated import SimulatedModel
from env_worker.registration import Registration
from env_worker.runner import Runner
from env_worker.servicer import SERVICE_NAME, EnvServicer, describe_environments, method_handlers
from env_worker.sessions import Sessions
from env_worker.stop_signals import StopSignals
from env_worker.stopping import Stopping
from env_worker.stuck import StuckWatch
from env_worker.tasks import log_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_worker.envs.registry import EnvironmentRegistry
    from env_worker.hook import EpisodeHook

logger = logging.getLogger(__name__)

_GRACE_SECONDS: Final = 1.0


class ServerStartError(Exception):
    """The address cannot be served on; the message says why and what to do."""


class WorkerServer:
    """A worker that serves EnvService, health and, on loopback, reflection.

    `start` on a running loop, then `address`; `stop` drains. One per process is usual, several in one work.

    Args:
        settings: see WorkerSettings.
        environments: what is served; None: what the settings name.
        hook: whom to hand episodes; None: the hook of `set_episode_hook`.
        clock: monotonic seconds, for windows.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        environments: EnvironmentRegistry | None = None,
        hook: EpisodeHook | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings: Final = settings
        self.instance: Final = uuid.uuid4().hex
        if environments is None:
            environments = load_environments(settings.environments, settings.isolate)
        self.environments: Final = environments
        self.stop_wanted: Final = asyncio.Event()
        """Set when the worker should be stopped: its broker says so or will not have it, or it is stuck."""
        self.exit_code = EXIT_OK
        """See `exit_codes`; what `stop` could not wait for is in it then."""
        self.address = ""
        """HOST:PORT that is served, once started."""
        self._hook: Final = hook
        self._clock: Final = clock
        self._stopping: Stopping | None = None
        self._stuck: StuckWatch | None = None
        self._runner: Runner | None = None
        self._sessions: Sessions | None = None
        self._server: grpc.aio.Server | None = None
        self._registration: Registration | None = None
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
        """Serve. ServerStartError if the address cannot be had, SettingsError if it may not be."""
        settings = self.settings
        if not (settings.loopback or settings.insecure):
            raise SettingsError(
                f"--listen is {settings.listen}, which is not loopback: the connection would be neither "
                "encrypted nor "
                "authenticated; listen on 127.0.0.1, or pass --insecure where the network itself is trusted"
            )
        server = grpc.aio.server(options=SERVER_OPTIONS)
        host = settings.listen.rpartition(":")[0]
        try:
            self.address = f"{host}:{bind(server, settings.listen)}"
        except RuntimeError as error:
            raise ServerStartError(
                f"cannot listen on {settings.listen}: the port is in use, or the address is not this host's; "
                f"choose another with --listen, or port 0 for a free one ({error})"
            ) from error
        runner = self._runner = Runner(settings, instance=self.instance, hook=self._hook, clock=self._clock)
        model = SimulatedModel(seed=settings.seed, accuracy=settings.accuracy)
        sessions = self._sessions = Sessions(
            runner,
            instance=self.instance,
            grace_seconds=settings.session_grace_seconds,
            clock=self._clock,
        )
        servicer = EnvServicer(
            runner, self.environments, model, sessions, instance=self.instance, clock=self._clock
        )
        server.add_generic_rpc_handlers((method_handlers(servicer),))
        health = health_aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        if settings.loopback:
            reflection.enable_server_reflection((SERVICE_NAME, HEALTH_NAME, reflection.SERVICE_NAME), server)
        await self._set_health(health)
        await server.start()
        self._server = server
        held = HeldArrays(current_hook if self._hook is None else lambda: self._hook)
        self._stopping = Stopping(settings, runner, held, worker=self.instance)
        self._stuck = StuckWatch(
            runner.environments, stuck_seconds=settings.stuck_seconds, give_up=self._give_up
        )
        health_task = asyncio.create_task(self._keep_health(health), name="health")
        health_task.add_done_callback(log_failure)
        self._tasks.append(health_task)
        if settings.broker is not None:
            self._registration = Registration(
                settings.broker,
                runner=runner,
                instance=self.instance,
                address=settings.advertised(self.address),
                environments=describe_environments(self.environments, model),
                drain=self._drain_ordered,
                held=held.read,
                clock=self._clock,
            )
            self._registration.start(self._refused)
        logger.info(
            "worker=%s address=%s serving %s",
            self.instance[:8],
            self.address,
            ",".join(self.environments.names),
        )

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
        assert self._stopping is not None
        assert self._stuck is not None
        losses = await self._stopping.run(self._draining)
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
        return losses.unfinished

    def _draining(self) -> None:
        if self._registration is not None:
            self._registration.nudge()

    def _give_up(self, reason: str) -> None:
        if self.stop_wanted.is_set():
            return  # it is on its way already, for another reason
        logger.error(
            "worker=%s reason=STUCK %s; it drains and ends with exit code %d, to be replaced",
            self.instance[:8], reason, EXIT_STUCK,
        )  # fmt: skip
        self.exit_code = EXIT_STUCK
        self.stop_wanted.set()

    def _drain_ordered(self, cause: str) -> None:
        logger.info("worker=%s the broker wants it to stop: %s", self.instance[:8], cause or "no cause given")
        self.stop_wanted.set()

    def _refused(self, reason: str) -> None:
        logger.error("worker=%s %s", self.instance[:8], reason)
        self.exit_code = EXIT_REFUSED
        self.stop_wanted.set()

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


def serve(settings: WorkerSettings | None = None, *, signals: StopSignals | None = None) -> int:
    """Serve until SIGTERM, SIGINT or the broker's order; then the exit code, which says what was lost.

    0 nothing; 1 the broker refused the worker; 3 hooks were still at work after `kill_seconds`; 4 the hook
    still held arrays after `linger_seconds`; 5 runs that had begun were ended after `drain_seconds`; 6 an
    environment blocked the loop of all environments for `stuck_seconds`. The first of 3, 4 and 5 that
    applies; only 3 takes the place of 1 or 6. Replies that could still be taken back count as delivered.

    Without settings they come from the variables ENV_WORKER_*; `signals` are handlers that were installed
    already, and stay. Raises SettingsError, HookLoadError, EnvironmentLoadError or ServerStartError if the
    worker cannot start.
    """
    settings = WorkerSettings.from_arguments(()) if settings is None else settings
    if not settings.environments:
        raise SettingsError(
            "--env is missing: a worker serves at least one environment, e.g. --env synthetic"
        )
    if settings.hook is not None:
        set_episode_hook(load_hook(settings.hook))
    return asyncio.run(_serve(settings, load_environments(settings.environments, settings.isolate), signals))


async def _serve(settings: WorkerSettings, loaded: EnvironmentRegistry, given: StopSignals | None) -> int:
    server = WorkerServer(settings, environments=loaded)
    await server.start()
    print(f"listening on {server.address}", flush=True)
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if server.stop_wanted.is_set():
            server.hurry()
        server.stop_wanted.set()

    def on_orphaned() -> None:
        server.stop_wanted.set()
        server.hurry()

    signals = StopSignals() if given is None else given
    signals.serving(loop, on_signal)
    if settings.exit_with_stdin:
        threading.Thread(target=_wait_for_end_of_stdin, args=(loop, on_orphaned), daemon=True).start()
    await server.stop_wanted.wait()
    await server.stop()
    if given is None:
        signals.restore()
    else:
        signals.over()
    return server.exit_code


def _wait_for_end_of_stdin(loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        # Not sys.stdin: a thread that holds its lock would break the interpreter's end.
        while os.read(0, 4096):
            pass
    with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has ended already
        loop.call_soon_threadsafe(then)
