"""The worker's gRPC server, and the order in which a worker stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
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
from env_worker.envs.registry import EnvironmentRegistry
from env_worker.hook import load_hook, set_episode_hook
from env_worker.model.simulated import SimulatedModel
from env_worker.registration import Registration
from env_worker.runner import Runner
from env_worker.servicer import SERVICE_NAME, EnvServicer, describe_environments, method_handlers
from env_worker.sessions import Sessions
from env_worker.tasks import log_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from env_worker.hook import EpisodeHook

logger = logging.getLogger(__name__)

EXIT_OK: Final = 0
EXIT_REFUSED: Final = 1
"""The broker refused the worker."""
EXIT_UNFINISHED: Final = 3
"""Hooks were still at work when the worker had to end."""
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
        self.environments: Final = (
            EnvironmentRegistry(settings.environments) if environments is None else environments
        )
        self.stop_wanted: Final = asyncio.Event()
        """Set when a broker wants the worker to stop, or will not have it."""
        self.exit_code = EXIT_OK
        self.address = ""
        """HOST:PORT that is served, once started."""
        self._hook: Final = hook
        self._clock: Final = clock
        self._hurry: Final = asyncio.Event()
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
            port = server.add_insecure_port(settings.listen)
        except RuntimeError as error:
            raise ServerStartError(
                f"cannot listen on {settings.listen}: the port is in use, or the address is not this host's; "
                f"choose another with --listen, or port 0 for a free one ({error})"
            ) from error
        self.address = f"{host}:{port}"
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
        """Skip what is left of the drain and of the stay for open windows."""
        self._hurry.set()

    async def stop(self, *, hurry: bool = False) -> list[str]:
        """Drain, stay for open windows, wait for hooks, stop serving: each within its bound of the settings.

        Returns the request_ids whose hooks were still at work at the end, cut to 8 digits.
        """
        if hurry:
            self.hurry()
        runner, settings = self.runner, self.settings
        runner.drain()
        if self._registration is not None:
            self._registration.nudge()
        await self._within(settings.drain_seconds, runner.wait_replied())
        runner.stop_runs()
        if (windows := runner.table.open_windows) and settings.linger_seconds and not self._hurry.is_set():
            logger.warning(
                "worker=%s stays up to %g s for %d replies that can still be taken back; "
                "a second signal ends it at once",
                self.instance[:8], settings.linger_seconds, windows,
            )  # fmt: skip
        await self._within(settings.linger_seconds, runner.wait_windows())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.kill_seconds):
                await runner.wait_hooks()
        unfinished = [entry.request_id[:8] for entry in runner.at_work()]
        if unfinished:
            self.exit_code = EXIT_UNFINISHED
            logger.error(
                "worker=%s reason=UNFINISHED after %g s hooks still have the runs %s; what they keep is "
                "neither "
                "delivered nor discarded",
                self.instance[:8], settings.kill_seconds, ",".join(unfinished),
            )  # fmt: skip
        if runner.table.open_windows:
            logger.warning(
                "worker=%s ends with %d replies that could still have been taken back: they count as "
                "delivered",
                self.instance[:8], runner.table.open_windows,
            )  # fmt: skip
        if self._registration is not None:
            await self._registration.close()
        self.sessions.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert self._server is not None
        await self._server.stop(_GRACE_SECONDS)
        await runner.close()
        return unfinished

    async def _within(self, seconds: float, reached: Coroutine[None, None, None]) -> None:
        waits = [asyncio.ensure_future(reached), asyncio.ensure_future(self._hurry.wait())]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

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


def serve(settings: WorkerSettings | None = None) -> int:
    """Serve until SIGTERM, SIGINT or the broker's order; the exit code (0, 1 refused by the broker, 3
    unfinished hooks).

    Without settings they come from the variables ENV_WORKER_*. Raises SettingsError, HookLoadError,
    EnvironmentLoadError or ServerStartError if the worker cannot start.
    """
    settings = WorkerSettings.from_arguments(()) if settings is None else settings
    if not settings.environments:
        raise SettingsError(
            "--env is missing: a worker serves at least one environment, e.g. --env synthetic"
        )
    if settings.hook is not None:
        set_episode_hook(load_hook(settings.hook))
    return asyncio.run(_serve(settings, EnvironmentRegistry(settings.environments)))


async def _serve(settings: WorkerSettings, environments: EnvironmentRegistry) -> int:
    server = WorkerServer(settings, environments=environments)
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

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if settings.exit_with_stdin:
        threading.Thread(target=_wait_for_end_of_stdin, args=(loop, on_orphaned), daemon=True).start()
    await server.stop_wanted.wait()
    await server.stop()
    return server.exit_code


def _wait_for_end_of_stdin(loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        # Not sys.stdin: a thread that holds its lock would break the interpreter's end.
        while os.read(0, 4096):
            pass
    with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has ended already
        loop.call_soon_threadsafe(then)
