"""One environment's process, as its worker sees it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final

import psutil

from env_worker.isolate import lifeline
from env_worker.isolate.frames import SOCKET_BYTES, FrameReader
from env_worker.isolate.lifeline import LAST_WORDS
from env_worker.isolate.log_lines import LogLines
from env_worker.model.engines import ENGINE_CLIENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from env_worker.isolate.frames import Buffer

logger = logging.getLogger(__name__)

EXIT_SECONDS: Final = 2.0
"""How long a process may take to end once its run has ended; then it is killed."""
_LAST_LINES_SECONDS: Final = 0.5

# The worker's own path, because its modules may have been found where no other interpreter would look.
_BOOT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from env_worker.isolate.child import main; main(sys.argv[3:])"
)


class ChildProcess:
    """A process that has loaded an environment, or is loading it, and waits for a `Job`. For one event loop.

    It leads a group of its own. When it ends, however it ends, what is left of the group is killed; when the
    worker ends, the group is too.
    """

    def __init__(self, spec: str) -> None:
        """Start it. OSError or RuntimeError where that is not possible; then nothing is left of it."""
        self._loop: Final = asyncio.get_running_loop()
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
            self._connection, its_connection = socket.socketpair()
            theirs.callback(its_connection.close)
            undo.callback(self._connection.close)
            its_lifeline, self._lifeline = lifeline.new()
            theirs.callback(os.close, its_lifeline)
            undo.callback(lifeline.let_go, self._lifeline)
            lines, output = os.pipe()
            theirs.callback(os.close, output)
            opened = undo.enter_context(contextlib.ExitStack())
            opened.callback(os.close, lines)
            level = str(logging.getLogger().getEffectiveLevel())
            fds = (its_connection.fileno(), its_lifeline)
            asks_engines = str(int(ENGINE_CLIENT in sys.modules))
            # Only what the interpreter looks at: a path object is one of those that it skips.
            path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
            self._process: Final = subprocess.Popen(
                (
                    *(sys.executable, "-P", "-c", _BOOT, path, "env_worker.isolate"),
                    *(spec, level, asks_engines, *map(str, fds)),
                ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=fds,
                start_new_session=True,
            )
            undo.callback(self._process.wait)
            undo.callback(self._kill_group)
            self._connection.setblocking(False)
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
            self._reaping: Final = threading.Lock()
            self._closed = False
            self._killed_because = ""
            self.frames: Final = FrameReader(self._connection)
            self.exited: Final[asyncio.Future[int | None]] = self._loop.create_future()
            """Once it is gone, its exit code: negative for a signal, None where somebody else took it."""
            self.log: Final = LogLines(lines, f"-,pid={self.pid}")
            opened.pop_all()
            undo.callback(self.log.stop)
            threading.Thread(target=self._reap, name=f"reap-{self.pid}", daemon=True).start()
            undo.pop_all()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def write(self, frame: Sequence[Buffer]) -> None:
        """Write one frame. OSError if the process is gone."""
        for piece in frame:
            await self._loop.sock_sendall(self._connection, piece)

    def kill(self, reason: str) -> None:
        """Kill the process and what it has started, where they are still there."""
        with self._reaping:
            if self._process.returncode is None:  # until it is reaped, its id is not another's
                self._killed_because = self._killed_because or reason
                self._kill_group()

    async def close(self, seconds: float) -> None:
        """Wait so long for its end, kill it then, and let go of all that belongs to it. Twice is once."""
        if self._closed:
            return
        self._closed = True
        await asyncio.wait((self.exited,), timeout=seconds)
        if not self.exited.done():
            self.kill(f"it did not end within {seconds:g} s after it closed its connection to the worker")
            await asyncio.wait((self.exited,))
        await self.log.close(_LAST_LINES_SECONDS)
        self._connection.close()
        lifeline.let_go(self._lifeline)

    def death(self) -> str:
        """How it died, and the last lines that it printed; once it has exited."""
        code = self.exited.result()
        last_words = [line.partition(LAST_WORDS)[2] for line in self.log.tail if LAST_WORDS in line]
        if self._killed_because:
            how = f"was killed by the worker: {self._killed_because}"
        elif last_words:
            how = f"ended itself: {last_words[-1]}"
        elif code is None:
            how = "ended, and something else in the worker's process took its exit code"
        elif code < 0:
            how = f"was killed by signal {-code} ({_signal_name(-code)})"
            if code == -signal.SIGKILL:
                how += ", which is what the system sends where memory runs out"
        else:
            how = f"ended with exit code {code}"
        lines = "\n".join(self.log.tail)
        return f"{how}; " + (f"its last lines were:\n{lines}" if lines else "it printed nothing")

    def _reap(self) -> None:
        code: int | None = None
        try:
            code = self._wait()
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has ended
                self._loop.call_soon_threadsafe(self.exited.set_result, code)

    def _wait(self) -> int | None:
        """Wait for its end and kill what is left of the group; the exit code."""
        if not hasattr(os, "waitid"):
            code = self._process.wait()
            self._kill_group()
            return code
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # reaped, by whoever waits for any child, or as SIGCHLD is ignored
            with self._reaping:
                self._process.wait()
                # Its id is another's only where there is such a process, which then may lead such a group.
                if not psutil.pid_exists(self.pid):
                    self._kill_group()
            return None
        with self._reaping:
            self._kill_group()
            return self._process.wait()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time signal"
