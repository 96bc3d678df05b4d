"""An environment for worker processes that does what none should, by the name in its task.

Name it `hostile=tests.helpers.hostile_environment:HostileEnvironment`. A task is {"deed": NAME, ...}; its
"pids" is a file for the process ids of what the deed has started.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from env_worker.domain import Message
from tests.helpers.gate import pass_blocking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.envs.base import Context


class HostileEnvironment:
    """Adds one node, so that there is an episode whatever follows, and does the deed."""

    name = "hostile"

    async def run(self, context: Context) -> None:
        context.new_trace().add_node(Message.user("soon"), [1])
        await getattr(self, context.task["deed"])(context.task)

    # Processes.

    async def fork_and_return(self, task: Mapping[str, Any]) -> None:
        if (child := os.fork()) == 0:
            return
        _reap(child)

    async def fork_and_await(self, task: Mapping[str, Any]) -> None:
        if (child := os.fork()) == 0:
            await asyncio.sleep(1000)
        _reap(child)

    async def fork_and_exit(self, task: Mapping[str, Any]) -> None:
        if (child := os.fork()) == 0:
            sys.exit(3)
        _reap(child)

    async def terminate_a_process(self, task: Mapping[str, Any]) -> None:
        """As multiprocessing does it, with a child that has the worker's handlers."""
        context = multiprocessing.get_context("fork")
        process = context.Process(target=signal.pause)
        process.start()
        process.terminate()
        process.join(10)
        assert process.exitcode == -signal.SIGTERM

    async def fork_in_a_thread(self, task: Mapping[str, Any]) -> None:
        """The child never comes back to the loop: it waits for work in its copy of a pool."""
        if child := await asyncio.to_thread(os.fork):
            _note(task, child)

    async def leave_processes(self, task: Mapping[str, Any]) -> None:
        _leave_processes(task)

    # The loop and its thread.

    async def block(self, task: Mapping[str, Any]) -> None:
        pass_blocking(task["gate"])

    async def swallow(self, task: Mapping[str, Any]) -> None:
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                continue

    async def stop_the_loop(self, task: Mapping[str, Any]) -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)

    # The process.

    async def exit_in_a_thread(self, task: Mapping[str, Any]) -> None:
        for what in (sys.exit, _raise):
            thread = threading.Thread(target=what, args=(1,))
            thread.start()
            thread.join()

    async def take_the_signals(self, task: Mapping[str, Any]) -> None:
        for take in (
            lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
            lambda: asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _raise, 1),
        ):
            try:
                take()
            except (ValueError, RuntimeError):
                continue
            raise AssertionError("it could take SIGTERM")
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])

    async def clear_the_variables(self, task: Mapping[str, Any]) -> None:
        os.environ.clear()

    async def close_the_standard_files(self, task: Mapping[str, Any]) -> None:
        for number in range(3):
            os.close(number)

    async def hold_the_exit(self, task: Mapping[str, Any]) -> None:
        """By a thread that does not end."""
        threading.Thread(target=threading.Event().wait).start()


def _leave_processes(task: Mapping[str, Any]) -> None:
    """One in a session of its own, one with another environment, one whose parent has gone."""
    own = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    other = subprocess.Popen(["sleep", "1000"], env={"PATH": os.environ["PATH"]})
    shell = "setsid sleep 1000 >&- 2>&- & echo $!"
    gone = subprocess.run(["sh", "-c", shell], stdout=subprocess.PIPE, check=True).stdout
    _note(task, own.pid, other.pid, int(gone))


def _reap(child: int) -> None:
    os.waitpid(child, 0)


def _raise(number: int) -> None:
    raise RuntimeError(f"thread {number}")


def _note(task: Mapping[str, Any], *pids: int) -> None:
    Path(task["pids"]).write_text(" ".join(map(str, pids)))
