"""A pool of real processes for faults: a broker that comes back to its port, workers, driven clients."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from tests.helpers.history import BrokerDied, WorkerDied
from tests.helpers.history_pipe import HistoryPipe
from tests.helpers.killable import Killable, fixed_port, gone
from tests.helpers.pools import HOOK
from tests.helpers.snapshot import descendants

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

WINDOW_SECONDS: Final = 2.0
GRACE_SECONDS: Final = 0.7
LEASE_SECONDS: Final = 1.0
DRAIN_SECONDS: Final = 1.5
LISTENING: Final = r"listening on (\S+)"
REGISTERED: Final = (
    r"^(?:\[worker \d+\] )?time=\S+ level=\S+ module=env_worker\.registration broker=\S+ "
    r"worker=([0-9a-f]{8}) lease=([0-9a-f]{8}) registered"
)
"""What a worker says when it has joined; instance and lease. Not the same where a broker quotes it."""
_BROKER: Final = (
    *("--heartbeat-seconds", "0.2", "--lease-seconds", str(LEASE_SECONDS)),
    *("--session-grace-seconds", str(GRACE_SECONDS)),
)
_STOP: Final = (
    *("--drain-seconds", str(DRAIN_SECONDS), "--linger-seconds", "6", "--kill-seconds", "5"),
    *("--hook", HOOK, "--late-cancel-seconds", str(WINDOW_SECONDS)),
)


class ClientProcess(Killable):
    """A `driven_client`."""

    async def begin(self) -> None:
        """Start it."""
        await self.start("^ready$")

    def tell(self, **command: Any) -> None:
        """Give it a command."""
        self.write(json.dumps(command))

    async def leave(self) -> None:
        """Let it finish what it has, and end."""
        self.close_input()
        assert await self.ended() == 0


class KillablePool:
    """One broker at a fixed port and workers that join it from outside; local ones are the broker's.

    Args:
        pipe: where hooks and clients report.
        local: arguments of the broker for workers of its own.
    """

    def __init__(self, pipe: HistoryPipe, *local: str) -> None:
        self.pipe: Final = pipe
        self.address: Final = f"127.0.0.1:{fixed_port()}"
        self.broker: Final = self._server(
            "env_broker", "serve", "--listen", self.address, *_BROKER, *_STOP, *local
        )
        self.workers: Final[dict[str, Killable]] = {}
        self.clients: Final[list[ClientProcess]] = []

    @property
    def local_pids(self) -> list[int]:
        """The broker's own workers."""
        return sorted(descendants(self.broker.pid)) if self.broker.running else []

    async def start(self) -> None:
        """Start the broker, again if it was killed."""
        await self.broker.start(LISTENING)

    async def join(self, name: str, *arguments: str) -> Killable:
        """Start the worker of that name, and wait until it is registered."""
        if name not in self.workers:
            listen = ("serve", "--listen", "127.0.0.1:0", "--broker", self.address)
            grace = ("--session-grace-seconds", str(GRACE_SECONDS))
            self.workers[name] = self._server("env_worker", *listen, *_STOP, *grace, *arguments)
        worker = self.workers[name]
        mark = worker.said_lines
        await worker.start(LISTENING)
        await worker.said(REGISTERED, since=mark)
        return worker

    async def client(self) -> ClientProcess:
        """Start a client."""
        client = ClientProcess("tests.helpers.driven_client", self.address, variables=self.pipe.variables)
        self.clients.append(client)
        await client.begin()
        return client

    async def kill_worker(self, pid: int) -> None:
        """SIGKILL to a worker, one of its own or one of the broker's; returns when it has ended."""
        self.pipe.history.note(WorkerDied, "", pid=pid)
        os.kill(pid, signal.SIGKILL)
        for worker in self.workers.values():
            if worker.running and worker.pid == pid:
                await worker.ended()
                return
        await gone(pid)

    async def kill_broker(self) -> list[int]:
        """SIGKILL to the broker. Returns its own workers, which are to end by themselves, in good order."""
        orphans = self.local_pids
        self.pipe.history.note(BrokerDied, "")
        await self.broker.kill()
        return orphans

    async def stop(self) -> None:
        """SIGTERM to all that run. GuaranteeBroken if a process stays."""
        for client in self.clients:
            if client.running:
                await client.leave()
        running = [process for process in (*self.workers.values(), self.broker) if process.running]
        await asyncio.gather(*(process.stop() for process in running))

    async def clean_up(self) -> None:
        """No process is left, however the test ended."""
        for process in (*self.clients, *self.workers.values(), self.broker):
            await process.clean_up()

    def _server(self, module: str, *arguments: str) -> Killable:
        return Killable(module, *arguments, variables=self.pipe.variables)


def leases(process: Killable, since: int = 0) -> list[tuple[str, str]]:
    """(instance, lease), 8 digits each, of every registration that it, or a worker of a broker, has said."""
    return [(found[1], found[2]) for found in process.all(REGISTERED, since=since)]


@asynccontextmanager
async def killable_pool(directory: Path, *local: str) -> AsyncIterator[KillablePool]:
    """A pool with a running broker. Leaving it stops all that runs, in good order."""
    pipe = HistoryPipe(directory / "pool.history")
    pool = KillablePool(pipe, *local)
    try:
        await pool.start()
        yield pool
        await pool.stop()
    finally:
        await pool.clean_up()
        pipe.close()
