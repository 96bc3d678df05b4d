"""The pool, its clients, and what the faults of a plan do to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Final

from grpc import aio

from tests.chaos.plan import LEASE_SECONDS, WINDOW_SECONDS
from tests.helpers.burial import bury
from tests.helpers.guarantee import GuaranteeBroken
from tests.helpers.history import Asked, BrokerDied, History, WorkerDied
from tests.helpers.killable import Killable, fixed_port, gone
from tests.helpers.pools import HOOK
from tests.helpers.snapshot import descendants, open_files
from tests.helpers.stub_client import StubClient, new_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.chaos.plan import Fault
    from tests.helpers.history_pipe import HistoryPipe

ENVIRONMENT: Final = "synthetic=tests.chaos.environment:ChaosEnvironment"
LISTENING: Final = r"listening on (\S+)"
CLIENTS: Final = ("async", "async", "sync", "bare", "bare-lane")
OUTSIDE: Final = 2
LOCAL: Final = 2
CLIENT_NUMBERS: Final = 256
"""Runs begin with their client's number, two hexadecimal digits; none is given twice."""
LEAVE_SECONDS: Final = 60.0
FEW_DESCRIPTORS: Final = 16
_COMMON: Final = (
    *("--env", ENVIRONMENT, "--hook", HOOK, "--max-concurrent", "8", "--log-level", "warning"),
    *("--drain-seconds", "1", "--linger-seconds", "6", "--kill-seconds", "10"),
    *("--late-cancel-seconds", str(WINDOW_SECONDS), "--session-grace-seconds", "1"),
)
_BROKER: Final = (
    "--workers",
    str(LOCAL),
    "--heartbeat-seconds",
    "0.2",
    "--lease-seconds",
    str(LEASE_SECONDS),
)


class Arena:
    """A broker with workers of its own and from outside, and client processes of every kind."""

    def __init__(self, pipe: HistoryPipe, seed: int) -> None:
        self.pipe: Final = pipe
        self.seed: Final = seed
        self.address: Final = f"127.0.0.1:{fixed_port()}"
        self.broker: Final = self._server("env_broker", "serve", "--listen", self.address, *_BROKER, *_COMMON)
        worker = ("env_worker", "serve", "--listen", "127.0.0.1:0", "--broker", self.address, *_COMMON)
        self.outside: Final = [self._server(*worker) for _ in range(OUTSIDE)]
        self.clients: Final[list[Killable]] = []
        self.buried: Final[dict[str, str]] = {}
        """Numbers of the clients that were killed, as two digits, and their kinds."""
        self.mischief: Final = History()
        """Calls that name no run of the clients, and their answers."""
        self._number = 0
        self._first_descriptors: Final[dict[str, int]] = {}
        self._struck: Final[set[int]] = set()
        """Processes that a fault has hold of."""

    async def start(self) -> None:
        """All of it."""
        await self.broker.start(LISTENING)
        await asyncio.gather(*(worker.start(LISTENING) for worker in self.outside))
        async with StubClient(self.address, History()) as client:
            await client.until_serving()
        for server in (self.broker, *self.outside):
            self._first_descriptors[server.module] = open_files(server.pid).total()
        self.clients.extend(await asyncio.gather(*(self._client(kind) for kind in CLIENTS)))

    async def strike(self, fault: Fault) -> None:
        """Bring about one fault; returns when it is over and what it ended was started again."""
        kind, target = fault.kind, fault.target
        if kind.startswith("worker SIGSTOP"):
            await self._stop(self._pick(self._worker_pids(), target), fault.seconds)
        elif kind == "worker SIGKILL":
            await self._end_worker(self._pick(self._worker_pids(), target), signal.SIGKILL)
        elif kind == "worker SIGTERM":
            await self._end_worker(self._pick(self._worker_pids(), target), signal.SIGTERM)
        elif kind == "broker SIGKILL":
            await self._kill_broker(fault.seconds)
        elif kind.startswith("broker SIGSTOP"):
            await self._stop(self.broker.pid if self.broker.ready else None, fault.seconds)
        elif kind == "client SIGKILL":
            await self._kill_client(target % len(self.clients))
        elif kind == "client SIGSTOP":
            client = self.clients[target % len(self.clients)]
            await self._stop(client.pid if client.ready else None, fault.seconds)
        else:
            await self._misbehave(kind)

    async def heal(self) -> None:
        """All go on, and the clients end when they have finished what they began."""
        if not self.broker.running:
            await self.broker.start(LISTENING)
        for worker in self.outside:
            if not worker.running:
                await worker.start(LISTENING)
        for client in self.clients:
            client.close_input()
        codes = await asyncio.gather(*(client.ended(LEAVE_SECONDS) for client in self.clients))
        assert set(codes) == {0}, f"clients ended with {codes}"

    def bury_all(self) -> list[str]:
        """Note what the killed clients did not live to note; their runs."""
        history = self.pipe.history
        runs = [run for run in history.runs() if run[:2] in self.buried and history.of(run, Asked)]
        for run in runs:
            bury(history, run, session=not self.buried[run[:2]].startswith("bare"))
        return runs

    async def ask(self, runs: list[str]) -> None:
        """Ask by a Cancel what became of these: those that were settled say so."""
        async with StubClient(self.address, self.pipe.history) as client:
            limit = asyncio.Semaphore(32)

            async def ask(run: str) -> None:
                async with limit:
                    await client.cancel(run)

            await asyncio.gather(*map(ask, runs))

    def descriptors_are_few(self) -> None:
        """GuaranteeBroken if a server has more files and sockets open than it had at first, but for a few."""
        for server in (self.broker, *self.outside):
            now, first = open_files(server.pid).total(), self._first_descriptors[server.module]
            if now > first + FEW_DESCRIPTORS:
                raise GuaranteeBroken(
                    f"broke NothingLeftBehind: {server.module} has {now} descriptors, at first {first}: "
                    f"{dict(open_files(server.pid))}"
                )

    async def stop(self) -> None:
        """Every server, in good order, without a stay for open windows."""
        await asyncio.gather(*(server.stop(hurry=True) for server in (self.broker, *self.outside)))

    async def clean_up(self) -> None:
        """No process is left, whatever happened."""
        for process in (*self.clients, *self.outside, self.broker):
            await process.clean_up()

    def _server(self, module: str, *arguments: str) -> Killable:
        return Killable(module, *arguments, variables=self.pipe.variables)

    async def _client(self, kind: str) -> Killable:
        number, self._number = self._number, self._number + 1
        arguments = (kind, self.address, "--seed", str(self.seed), "--number", str(number))
        client = Killable("tests.chaos.client", *arguments, variables=self.pipe.variables)
        await client.start("^ready$")
        return client

    def _local_pids(self) -> list[int]:
        return sorted(_workers_below(self.broker.pid)) if self.broker.running else []

    def _worker_pids(self) -> list[int]:
        pids = [*self._local_pids(), *(worker.pid for worker in self.outside if worker.ready)]
        return [pid for pid in pids if pid not in self._struck]

    @contextlib.contextmanager
    def _hold(self, pid: int) -> Iterator[None]:
        self._struck.add(pid)
        try:
            yield
        finally:
            self._struck.discard(pid)

    async def _stop(self, pid: int | None, seconds: float) -> None:
        if pid is None or pid in self._struck:
            return
        with self._hold(pid):
            self._signal(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                self._signal(pid, signal.SIGCONT)

    async def _end_worker(self, pid: int | None, number: signal.Signals) -> None:
        if pid is None:
            return
        worker = next((one for one in self.outside if one.running and one.pid == pid), None)
        with self._hold(pid):
            if self._signal(pid, number) and number is signal.SIGKILL:
                self.pipe.history.note(WorkerDied, "", pid=pid)
            if worker is None:
                await gone(pid)  # the broker starts another
            else:
                await worker.ended()
                await worker.start(LISTENING)

    async def _kill_broker(self, seconds: float) -> None:
        if not self.broker.ready:
            return
        orphans = self._local_pids()
        self.pipe.history.note(BrokerDied, "")
        await self.broker.kill()
        await asyncio.gather(asyncio.sleep(seconds), *map(gone, orphans))
        for pid in orphans:  # they leave at once, open windows and all
            self.pipe.history.note(WorkerDied, "", pid=pid)
        await self.broker.start(LISTENING)

    async def _kill_client(self, index: int) -> None:
        client = self.clients[index]
        if not client.ready or client.pid in self._struck or self._number == CLIENT_NUMBERS:
            return
        kind, number = client.arguments[0], int(client.arguments[-1])
        with self._hold(client.pid):
            self._signal(client.pid, signal.SIGKILL)
            self.buried[f"{number:02x}"] = kind
            await client.ended()
            self.clients[index] = await self._client(kind)

    async def _misbehave(self, kind: str) -> None:
        async with StubClient(self.address, self.mischief) as stub:
            calls: list[Callable[[], Awaitable[object]]]
            if kind == "foreign cancels":
                calls = [lambda: stub.cancel(new_id()) for _ in range(20)]
            elif kind == "malformed calls":
                calls = [
                    lambda: stub.cancel("not-an-id"),
                    lambda: stub.cancel(new_id(), protocol_generation=99),
                    lambda: stub.run("no json", timeout=5.0),
                    lambda: stub.run({}, request_id="nor-this", timeout=5.0),
                    lambda: stub.run({}, environment="nosuch", timeout=5.0),
                ]
            else:
                calls = [
                    lambda: stub.cancel(new_id(), cause="x" * 2**20),
                    lambda: stub.run({"turns": "9" * 2**20}, timeout=5.0),
                ]
            with contextlib.suppress(aio.AioRpcError):
                await asyncio.gather(*(call() for call in calls))

    @staticmethod
    def _pick(pids: list[int], target: int) -> int | None:
        return pids[target % len(pids)] if pids else None

    @staticmethod
    def _signal(pid: int, number: signal.Signals) -> bool:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True


def _workers_below(pid: int) -> list[int]:
    """A broker's own workers, without what their environments have started."""
    return [child for child, name in descendants(pid).items() if name.startswith("python")]


async def play(arena: Arena, plan: list[Fault], seconds: float, tell: Callable[[Fault], None]) -> None:
    """Let the faults of the plan come at their times, beside one another; returns when all are over."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as strikes:
        for fault in plan:
            await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
            tell(fault)
            strikes.create_task(arena.strike(fault))
        await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
