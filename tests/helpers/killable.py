"""Server and client processes that tests kill, stop and start again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from collections import deque
from typing import TYPE_CHECKING, Final

from tests.helpers.guarantee import GuaranteeBroken
from tests.helpers.pools import ROOT, slips_of
from tests.helpers.snapshot import alive, descendants

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Mapping

START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 20.0
_LINES: Final = 5_000


def fixed_port() -> int:
    """A port that is free now, for a server that comes back to it.

    Below those from which the kernel connects, or whoever dials it while the server is away may be given that
    very port, and is connected with itself. Processes that were started one after another, as those of a
    parallel run of the tests, search far apart: none may find the other's while its server is away.
    """
    for port in range(20_000 + os.getpid() * 101 % 9_000, 32_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port from 20000 to 32000 is free")


class Killable:
    """`python -m module arguments`, one process after another. What it says is read all the time.

    Args:
        module: what to run.
        variables: in its environment, besides the test's own.
    """

    def __init__(self, module: str, *arguments: str, variables: Mapping[str, str]) -> None:
        self.module: Final = module
        self.arguments: Final = arguments
        self.code: int | None = None
        """How its last process ended."""
        self.ready = False
        """Whether its process has said what `start` waits for, and has not ended."""
        self.said_lines = 0
        """How many lines it has said, in all its lives: a mark for `said`."""
        self._variables: Final = variables
        self._lines: Final[deque[str]] = deque(maxlen=_LINES)
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    @property
    def pid(self) -> int:
        """Of its process. RuntimeError if there is none."""
        if self._process is None:
            raise RuntimeError(f"{self.module} does not run; start it first")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has a process that has not ended, or that nobody has waited for."""
        return self._process is not None

    async def start(self, pattern: str) -> re.Match[str]:
        """Start it, and wait until it says `pattern`. AssertionError with its log if it ends before that."""
        mark = self.said_lines
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self.module, *self.arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **self._variables},
            cwd=ROOT,
        )
        self._reader = asyncio.create_task(self._read(self._process))
        found = await self.said(pattern, since=mark, timeout=START_SECONDS)
        self.ready = True
        return found

    async def said(self, pattern: str, *, since: int = 0, timeout: float = 10.0) -> re.Match[str]:
        """Wait for a line that matches, among those after the first `since`. AssertionError with its last
        lines if none comes in time, or its process ends before."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while True:
                    self._news.clear()
                    if (found := self.search(pattern, since=since)) is not None:
                        return found
                    if self._reader is None or self._reader.done():
                        break
                    await self._news.wait()
        tail = "\n".join([*self._lines][-30:])
        raise AssertionError(f"{self.module} did not say {pattern!r} within {timeout:g} s:\n{tail}")

    def search(self, pattern: str, *, since: int = 0) -> re.Match[str] | None:
        """The first line that matches, among those after the first `since`; None if there is none."""
        return next(iter(self.all(pattern, since=since)), None)

    def all(self, pattern: str, *, since: int = 0) -> list[re.Match[str]]:
        """Every line that matches, among those after the first `since`."""
        forgotten = self.said_lines - len(self._lines)
        lines = [*self._lines][max(0, since - forgotten) :]
        return [found for line in lines if (found := re.search(pattern, line)) is not None]

    def write(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    def close_input(self) -> None:
        """End its standard input."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal; none where it has ended."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def ended(self, timeout: float = STOP_SECONDS) -> int:
        """Wait for its end; the exit code. GuaranteeBroken if its log shows a slip."""
        assert self._process is not None
        assert self._reader is not None
        self.ready = False
        self.code = await asyncio.wait_for(self._process.wait(), timeout)
        await self._reader
        self._process = None
        if slips := slips_of(self._lines):
            raise GuaranteeBroken(f"{self.module} logged {slips}")
        return self.code

    async def kill(self) -> int:
        """SIGKILL; returns its pid when it has ended."""
        pid = self.pid
        self.signal(signal.SIGKILL)
        await self.ended()
        return pid

    async def stop(self, *, hurry: bool = False) -> int:
        """SIGTERM, and to hurry it a second signal; the exit code. GuaranteeBroken if it, or a descendant of
        it, is there after STOP_SECONDS."""
        below = descendants(self.pid)
        self.signal(signal.SIGTERM)
        if hurry:
            self.signal(signal.SIGINT)  # not the same one, as two of those may come as one
        try:
            return await self.ended()
        except TimeoutError:
            below[self.pid] = "itself"
            raise
        finally:
            left = {pid: name for pid, name in below.items() if alive(pid)}
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            if left:
                raise GuaranteeBroken(f"broke NothingLeftBehind: {self.module} left {left} after SIGTERM")

    async def clean_up(self) -> None:
        """Whatever became of the test: no process is left, also none that was stopped."""
        if self._process is None:
            return
        for pid in (*descendants(self.pid), self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self._process.wait()
        if self._reader is not None:
            await self._reader
        self._process = None

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self._lines.append(line.decode(errors="replace").rstrip())
            self.said_lines += 1
            self._news.set()
        self._news.set()


async def gone(pid: int, timeout: float = STOP_SECONDS) -> None:
    """Wait until a process that may not be our child has ended. TimeoutError naming it if it has not."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(handle, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), timeout)
    except TimeoutError:
        raise TimeoutError(f"process {pid} has not ended within {timeout:g} s") from None
    finally:
        loop.remove_reader(handle)
        os.close(handle)
