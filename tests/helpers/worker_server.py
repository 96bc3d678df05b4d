"""A worker's server in the test's own process, a client of it, and a hook that stops where a test wants."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from env_worker.config import WorkerSettings
from env_worker.domain import Message
from env_worker.domain.ledger import State
from env_worker.exit_codes import EXIT_UNFINISHED
from env_worker.server import WorkerServer
from tests.helpers import oracle
from tests.helpers.clock import FakeClock
from tests.helpers.history import DiscardBegan, DiscardRaised, DiscardReturned, History, KeepBegan
from tests.helpers.runner_harness import SECONDS, HaltingHook, Stop, within
from tests.helpers.session_stream import SessionStream
from tests.helpers.stub_client import StubClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from env_worker.domain.ledger import Entry
    from env_worker.envs.base import Context
    from env_worker.runner import Runner
    from tests.helpers.stub_client import OpenRun, Transport

SMALL = {"turns": 1, "tokens_per_turn": 5, "layers": 1, "top_k": 1}
ENDLESS = {"turns": 1, "turn_seconds": 600}


STEP_SECONDS = 0.25


class FailingEnvironment:
    """Raises before its first trace. Served as "failing"."""

    name = "failing"

    async def run(self, context: Context) -> None:
        raise OSError(f"run {context.request_id[:8]}: no such data set")


class LargeEnvironment:
    """One node with a text of task["mebibytes"]. Served as "large"."""

    name = "large"

    async def run(self, context: Context) -> None:
        context.new_trace().add_node(Message.user("x" * context.task["mebibytes"] * 2**20))


class WorkerSubject:
    """The worker, its client, its hook and its clock."""

    def __init__(self, server: WorkerServer, client: StubClient, hook: HaltingHook, clock: FakeClock) -> None:
        self.server = server
        self.client = client
        self.hook = hook
        self.clock = clock
        self.stopped = False

    @property
    def runner(self) -> Runner:
        """The worker's runs."""
        return self.server.runner

    @property
    def history(self) -> History:
        """All that was recorded."""
        return self.client._history

    def stream(self) -> SessionStream:
        """A session's stream that was not opened yet."""
        return SessionStream(self.client.stub, self.history)

    async def session(self, session_id: str, epoch: int = 1) -> SessionStream:
        """An open session."""
        return await self.stream().open(session_id, epoch)

    async def replied(self, session_id: str = "") -> str:
        """A run whose reply has come."""
        outcome = await self.client.run(SMALL, session_id=session_id)
        assert outcome.code == "OK"
        return outcome.run

    async def in_keep(self, stop: Stop, **fields: Any) -> OpenRun:
        """A run whose keep stands at `stop`."""
        run = self.client.start(SMALL, **fields)
        self.hook.in_keep[run.run] = lambda _: stop.block()
        await stop.reached()
        return run

    def entry(self, run: str) -> Entry:
        """The ledger's entry of a run that is not closed."""
        entry = self.runner.table.get(run)
        assert entry is not None
        return entry

    async def until_kept(self, run: str) -> None:
        """Wait until its keep has returned and its reply has not left."""

        def kept() -> bool:
            entry = self.runner.table.get(run)
            return entry is not None and entry.state is State.KEPT

        await within(self.runner.wait_until(kept))

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for what nobody tells, one event-loop turn at a time."""
        async with asyncio.timeout(SECONDS):
            while not reached():  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0)

    async def until_away(self) -> None:
        """Wait until the server has seen a session's stream end."""
        await self.until(lambda: self.server.sessions.table.next_expiry is not None)

    def after(self, seconds: float) -> None:
        """Let time pass, windows close, and sessions be lost.

        In steps: a worker whose clock leaps has stood still, and puts off what is due.
        """
        whole, rest = divmod(seconds, STEP_SECONDS)
        for step in (*([STEP_SECONDS] * int(whole)), rest):
            self.clock.advance(step)
            self.runner.expire()
            self.server.sessions.expire()

    async def until_discarded(self, run: str) -> None:
        """Wait until its discard has come to its end."""
        ends = (DiscardReturned, DiscardRaised)
        await within(self.runner.wait_until(lambda: bool(self.history.of(run, *ends))))

    def keeps(self, run: str) -> int:
        """How often keep was called for it."""
        return len(self.history.of(run, KeepBegan))

    def discards(self, run: str) -> int:
        """How often discard was called for it."""
        return len(self.history.of(run, DiscardBegan))

    async def stop(self, *, hurry: bool = False) -> list[str]:
        """Stop the worker, as SIGTERM does; the runs whose hooks it left at work."""
        self.stopped = True
        async with asyncio.timeout(20):
            return await self.server.stop(hurry=hurry)


@asynccontextmanager
async def serving_worker(
    clock: Callable[[], float] | None = None, *, transport: Transport = "run", **settings: Any
) -> AsyncIterator[WorkerSubject]:
    """A worker that is stopped at the end, when the oracle has judged. Its clock stands still unless one is
    given. `transport` is how its client carries runs."""
    history, fake = History(), FakeClock()
    hook = HaltingHook(history)
    own = ("FailingEnvironment", "LargeEnvironment")
    environments = ("synthetic", *(f"tests.helpers.worker_server:{name}" for name in own))
    server = WorkerServer(
        WorkerSettings(environments=environments, **settings), hook=hook, clock=clock or fake
    )
    await server.start()
    async with StubClient(server.address, history, transport) as client:
        subject = WorkerSubject(server, client, hook, fake)
        try:
            yield subject
            if server.exit_code != EXIT_UNFINISHED:
                await within(server.runner.wait_hooks())
            oracle.promises_hold(client.history, asked=client.asked)
        finally:
            if not subject.stopped:
                assert await subject.stop(hurry=True) == []
