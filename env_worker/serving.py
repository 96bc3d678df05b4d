"""Serving from start to stop: what a worker's process does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import TYPE_CHECKING

from env_worker import event_loop
from env_worker.array_limits import warn_of_unused
from env_worker.config import LOCAL_SLOT_VARIABLE, SettingsError, WorkerSettings
from env_worker.hook import current_hook, load_hook, set_episode_hook
from env_worker.isolate.registry import load_environments
from env_worker.server import WorkerServer
from env_worker.stop_signals import StopSignals

if TYPE_CHECKING:
    from collections.abc import Callable


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
    # Taken out before anything of the user's is imported: what that starts is not the broker's own worker.
    local_slot = os.environ.pop(LOCAL_SLOT_VARIABLE, "")
    settings = WorkerSettings.from_arguments(()) if settings is None else settings
    if not settings.environments:
        raise SettingsError(
            "--env is missing: a worker serves at least one environment, e.g. --env synthetic"
        )
    if settings.hook is not None:
        set_episode_hook(load_hook(settings.hook))
    loaded = load_environments(settings.environments, settings.isolate)
    warn_of_unused(settings, current_hook())  # now: a module of environments may have set one
    return event_loop.run(_serve(WorkerServer(settings, environments=loaded, local_slot=local_slot), signals))


async def _serve(server: WorkerServer, given: StopSignals | None) -> int:
    await server.start()
    print(f"listening on {server.address}", flush=True)
    loop = asyncio.get_running_loop()

    def on_signal(name: str) -> None:
        if server.stop_wanted.is_set():
            server.hurry()
        server.want_stop(name)

    def on_orphaned() -> None:
        server.want_stop("its broker has ended")
        server.hurry()

    signals = StopSignals() if given is None else given
    signals.serving(loop, on_signal)
    if server.settings.exit_with_stdin:
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
