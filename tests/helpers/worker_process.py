"""A worker process with a hook, and a client of it."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from grpc_health.v1 import health_pb2

from tests.helpers.history_pipe import HistoryPipe
from tests.helpers.pools import HOOK, SCRIPTED, serving
from tests.helpers.stub_client import StubClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from tests.helpers.pools import ServerProcess

HOSTILE = "hostile=tests.helpers.hostile_environment:HostileEnvironment"
SECONDS = 20.0


class WorkerProcess:
    """The process, its client, and what its environments and hook recorded."""

    def __init__(self, server: ServerProcess, client: StubClient, pipe: HistoryPipe) -> None:
        self.server = server
        self.client = client
        self.pipe = pipe

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal."""
        self.server.process.send_signal(number)

    async def exit_code(self) -> int:
        """Its exit code, once it has ended."""
        return await asyncio.wait_for(self.server.process.wait(), SECONDS)

    async def until_draining(self) -> None:
        """Wait until its health is NOT_SERVING."""
        watch = self.client.health.Watch(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        async for state in watch:
            if state.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                break
        watch.cancel()

    def logged(self, *words: str) -> list[str]:
        """The lines of its log that have all of these. All of them are there once the worker was left."""
        return [line for line in self.server.log if all(word in line for word in words)]


@asynccontextmanager
async def worker_process(
    directory: Path, *arguments: str, hook: str = HOOK, variables: Mapping[str, str] | None = None
) -> AsyncIterator[WorkerProcess]:
    """It serves "scripted" and "hostile"."""
    pipe = HistoryPipe(directory / "history")
    flags = ("--env", SCRIPTED, "--env", HOSTILE, "--hook", hook, *arguments)
    try:
        async with (
            serving("env_worker", *flags, variables={**pipe.variables, **(variables or {})}) as server,
            StubClient(server.address, pipe.history) as client,
        ):
            yield WorkerProcess(server, client, pipe)
    finally:
        pipe.close()


async def gone(pid: int) -> None:
    """Wait until a process that may not be our child has ended. TimeoutError if it does not."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(handle, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), SECONDS)
    finally:
        loop.remove_reader(handle)
        os.close(handle)
