"""An environment's own process: loads it, plays one run, ends."""

from __future__ import annotations

import faulthandler
import importlib
import logging
import socket
import sys
import threading
from typing import TYPE_CHECKING

from env_worker.domain import Episode
from env_worker.environment_loop import EnvironmentLoop
from env_worker.envs.base import Context, Environment, play
from env_worker.envs.registry import EnvironmentLoadError, EnvironmentRegistry
from env_worker.isolate import lifeline
from env_worker.isolate.frames import SOCKET_BYTES, read_frame, send_frame
from env_worker.isolate.messages import Began, Cancel, Job
from env_worker.isolate.reporter import Reporter
from env_worker.model.engines import ENGINE_CLIENT
from env_worker.stop_signals import StopSignals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from env_worker.environment_loop import Outcome


def main(arguments: Sequence[str]) -> None:
    """Play the run that comes over the connection. Arguments: environment spec, log level, whether engines
    may be asked, and the descriptors of the connection and of the lifeline."""
    spec, level, asks_engines, connection_fd, lifeline_fd = arguments
    lifeline.hold_on(int(lifeline_fd))
    lifeline.be_killed_first()
    # Whoever ends all processes of a service at once means the worker, which gives its runs their time.
    StopSignals().install()
    faulthandler.enable(all_threads=False)
    threading.excepthook = _end_with_the_loop
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # the worker logs them line by line
    logging.basicConfig(level=int(level), format="level=%(levelname)s module=%(name)s %(message)s")
    connection = socket.socket(fileno=int(connection_fd))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
    try:
        environment: Environment | EnvironmentLoadError = _load(spec)
    except EnvironmentLoadError as error:  # it loaded in the worker: said to the run that needs it
        environment = error
    if int(asks_engines):
        importlib.import_module(ENGINE_CLIENT)  # takes a second, which the run need not wait
    try:
        _play(environment, read_frame(connection), connection)
    except (EOFError, OSError) as error:
        lifeline.end_group(f"the connection to the worker is gone: {error}")


def _end_with_the_loop(failure: threading.ExceptHookArgs) -> None:
    """An environment may break its event loop, by closing files for example: nothing else ends its run."""
    threading.__excepthook__(failure)
    if failure.thread is not None and failure.thread.name == "environments":
        lifeline.end_group("the environment broke its event loop")


def _load(spec: str) -> Environment:
    registry = EnvironmentRegistry((spec,))
    return registry.get(registry.names[0])


def _play(environment: Environment | EnvironmentLoadError, job: Job, connection: socket.socket) -> None:
    episode = Episode(
        job.episode_id, job.environment_name, dict(job.task), job.request_id, job.owner, job.group_id
    )
    context = Context(job.request_id, job.task, job.sampling, job.model, episode, job.deadline)
    send_frame(connection, Began())
    loop = EnvironmentLoop()
    outcome: Outcome
    reporter = Reporter(
        episode, lambda message: send_frame(connection, message), on_failure=lambda: loop.cancel(outcome)
    )
    if isinstance(environment, EnvironmentLoadError):
        reporter.finish(environment)
        return
    outcome = loop.submit(play(environment, context))
    loop.start()
    threading.Thread(target=_listen, args=(connection, loop, outcome), name="worker", daemon=True).start()
    reporter.finish(outcome.result())


def _listen(connection: socket.socket, loop: EnvironmentLoop, outcome: Outcome) -> None:
    try:
        while True:
            if isinstance(read_frame(connection), Cancel):
                loop.cancel(outcome)
    except (EOFError, OSError) as error:
        lifeline.end_group(f"the connection to the worker is gone: {error}")
