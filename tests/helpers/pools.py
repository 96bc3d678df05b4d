"""Starts real server processes on port 0, and always ends them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from tests.helpers.history_pipe import HistoryPipe
from tests.helpers.oracle import GuaranteeBroken
from tests.helpers.pool_watch import states, watcher
from tests.helpers.snapshot import alive, descendants
from tests.helpers.stub_client import StubClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 30.0
STOP_SECONDS = 20.0
SCRIPTED = "scripted=tests.helpers.scripted_environment:ScriptedEnvironment"
HOOK = "tests.helpers.recording_hook:RecordingHook"
QUICK_STOP = ("--drain-seconds", "0.2", "--linger-seconds", "0.2", "--kill-seconds", "10")
# What asyncio, grpc and the ledger say when something was forgotten.
SLIPS = ("never retrieved", "was destroyed but it is pending", "LedgerError", "never awaited")


def slips_of(lines: Iterable[str]) -> list[str]:
    """The lines of a log that tell of something forgotten, each with the one after it: of what."""
    log = [*lines, ""]
    return [
        f"{line} {following}".strip()
        for line, following in pairwise(log)
        if any(slip in line for slip in SLIPS)
    ]


@dataclass
class ServerProcess:
    """A running server. `log` has its last lines on stderr."""

    process: asyncio.subprocess.Process
    address: str = ""
    log: deque[str] = field(default_factory=lambda: deque(maxlen=2000))
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by each line."""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    async def said(self, pattern: str) -> str:
        """The first line of its log in which that is found; waits for it."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                self.news.clear()
                if found := [line for line in self.log if re.search(pattern, line)]:
                    return found[0]
                await self.news.wait()


@dataclass
class Subject:
    """What serves EnvService with the environments "synthetic" and "scripted" and a recording hook."""

    name: str
    server: ServerProcess
    pipe: HistoryPipe

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return self.server.address


@asynccontextmanager
async def serving(
    module: str,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
    python: Path | None = None,
    directory: Path = ROOT,
) -> AsyncIterator[ServerProcess]:
    """`python -m module serve --listen 127.0.0.1:0 arguments`, from its `listening on` line to its end.

    It runs in `directory`, from which it imports before all else. Leaving it sends SIGTERM. Raises
    GuaranteeBroken if the process or a descendant of it is still there then, or if its log shows a slip.
    """
    environment = {**os.environ, "PYTHONPATH": str(directory), "PYTHONUNBUFFERED": "1", **(variables or {})}
    process = await asyncio.create_subprocess_exec(
        *(str(python or sys.executable), "-m", module, "serve", "--listen", "127.0.0.1:0", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        cwd=directory,
    )
    server = ServerProcess(process)
    assert process.stdout is not None
    assert process.stderr is not None
    drains = [asyncio.create_task(_drain(process.stderr, server))]
    try:
        server.address = await _address(process.stdout, server)
        drains.append(asyncio.create_task(_drain(process.stdout, server)))
        yield server
    finally:
        left = await _end(process)
        await asyncio.gather(*drains)
    if left:
        raise GuaranteeBroken(
            f"broke NothingLeftBehind: {module} left {left} after SIGTERM and {STOP_SECONDS} s"
        )
    if slips := slips_of(server.log):
        raise GuaranteeBroken(f"{module} logged {slips}")


@asynccontextmanager
async def worker_subject(directory: Path, *arguments: str) -> AsyncIterator[Subject]:
    """A bare worker."""
    async with _subject("worker", "env_worker", directory, ("--max-concurrent", "64", *arguments)) as subject:
        yield subject


@asynccontextmanager
async def broker_subject(directory: Path, *arguments: str) -> AsyncIterator[Subject]:
    """A broker with two local workers, which are both there: while one is expected, a run may wait for it."""
    some = ("--workers", "2", "--max-concurrent", "32", *arguments)
    async with _subject("broker", "env_broker", directory, some) as subject:
        async with watcher(subject.address) as watching:
            await watching.watch().until(lambda view: set(states(view)) == {"READY"})
        yield subject


@asynccontextmanager
async def _subject(
    name: str, module: str, directory: Path, arguments: Sequence[str]
) -> AsyncIterator[Subject]:
    pipe = HistoryPipe(directory / f"{name}.history")
    environments = ("--env", "synthetic", "--env", SCRIPTED, "--hook", HOOK)
    try:
        async with serving(
            module, *environments, *QUICK_STOP, *arguments, variables=pipe.variables
        ) as server:
            async with StubClient(server.address, pipe.history) as client:
                await client.until_serving()
            yield Subject(name, server, pipe)
    finally:
        pipe.close()


async def _address(stdout: asyncio.StreamReader, server: ServerProcess) -> str:
    try:
        async with asyncio.timeout(START_SECONDS):
            while line := (await stdout.readline()).decode():
                if line.startswith("listening on "):
                    return line.removeprefix("listening on ").strip()
                server.log.append(line)
            await server.process.wait()
    except TimeoutError:
        pass
    raise AssertionError(
        f"no 'listening on' line (exit code {server.process.returncode}): {list(server.log)[-30:]}"
    )


async def _drain(stream: asyncio.StreamReader, server: ServerProcess) -> None:
    while line := await stream.readline():
        server.log.append(line.decode(errors="replace").rstrip())
        server.news.set()


async def _end(process: asyncio.subprocess.Process) -> dict[int, str]:
    """Stop it; what is left of it and its descendants, which is killed then."""
    below = descendants(process.pid)
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            below[process.pid] = "itself"
    left = {pid: name for pid, name in below.items() if alive(pid)}
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    await process.wait()
    return left
