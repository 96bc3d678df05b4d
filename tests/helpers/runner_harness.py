"""A worker's Runner without a network: environments and a hook that stop where a test wants, and a handler
by hand."""

from __future__ import annotations

import asyncio
import concurrent.futures
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from env_worker.config import WorkerSettings
from env_worker.domain import Message, SamplingParams
from env_worker.model.simulated import SimulatedModel
from env_worker.port import RunPort
from env_worker.run import RunSpec
from env_worker.runner import Runner
from tests.helpers import oracle
from tests.helpers.clock import FakeClock
from tests.helpers.counting_store import CountingStore
from tests.helpers.history import (
    Asked,
    CancelAnswered,
    CancelSent,
    ConfirmAnswered,
    ConfirmSent,
    DiscardBegan,
    DiscardRaised,
    DiscardReturned,
    Ended,
    History,
    KeepBegan,
    KeepRaised,
    KeepReturned,
    Passed,
)
from tests.helpers.stub_client import new_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping

    from env_worker.arrays.store import ArrayStore
    from env_worker.domain import Episode
    from env_worker.envs.base import Context
    from env_worker.run import Run
    from env_worker.status import Refusal

SECONDS = 20.0


class Stop:
    """A place where code of another loop or thread halts: the test waits until it is there, and lets it
    go."""

    def __init__(self) -> None:
        self._here: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._go: concurrent.futures.Future[None] = concurrent.futures.Future()

    async def reached(self) -> None:
        """Wait until the code is there."""
        async with asyncio.timeout(SECONDS):
            await asyncio.shield(asyncio.wrap_future(self._here))

    @property
    def is_reached(self) -> bool:
        """Whether the code is there, or was."""
        return self._here.done()

    def go(self) -> None:
        """Let it, and whoever comes later, go on."""
        if not self._go.done():
            self._go.set_result(None)

    async def halt(self) -> None:
        """Halt a task here; it may be cancelled meanwhile."""
        self._arrive()
        await asyncio.shield(asyncio.wrap_future(self._go))

    def block(self) -> None:
        """Halt a thread here."""
        self._arrive()
        self._go.result(2 * SECONDS)

    def _arrive(self) -> None:
        if not self._here.done():
            self._here.set_result(None)


class HaltingHook:
    """Records its calls; does in `keep` and `discard` what the test set for that run."""

    def __init__(self, history: History) -> None:
        self.in_keep: dict[str, Callable[[Episode], None]] = {}
        self.in_discard: dict[str, Callable[[Episode], None]] = {}
        self.discarded: list[Episode] = []
        self.array_store: ArrayStore | None = None
        self._history = history

    def keep(self, episode: Episode, sampling: SamplingParams) -> None:
        assert isinstance(sampling, SamplingParams)
        run = episode.request_id
        nodes = sum(len(trace.nodes) for trace in episode.traces)
        self._history.note(KeepBegan, run, episode_id=episode.id, ok=episode.ok, nodes=nodes)
        try:
            self.in_keep.get(run, _nothing)(episode)
        except BaseException:
            self._history.note(KeepRaised, run)
            raise
        self._history.note(KeepReturned, run)

    def discard(self, episode: Episode) -> None:
        run = episode.request_id
        nodes = sum(len(trace.nodes) for trace in episode.traces)
        self._history.note(DiscardBegan, run, episode_id=episode.id, nodes=nodes)
        self.discarded.append(episode)
        try:
            self.in_discard.get(run, _nothing)(episode)
        except BaseException:
            self._history.note(DiscardRaised, run)
            raise
        self._history.note(DiscardReturned, run)


class FunctionEnvironment:
    """Runs a coroutine function. `validate` as that of environments."""

    def __init__(
        self,
        play: Callable[[Context], Coroutine[Any, Any, None]],
        validate: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self._play = play
        self.validate = validate

    async def run(self, context: Context) -> None:
        await self._play(context)


class Caller:
    """The handler's side of one run, step by step."""

    def __init__(self, harness: Harness, request_id: str) -> None:
        self.id = request_id
        self.port: RunPort[Refusal] = RunPort()
        self.run: Run | None = None
        self._harness = harness
        self._gone = False

    async def take(self) -> bytes | None:
        """Take the next message and hold it."""
        async with asyncio.timeout(SECONDS):
            return await self.port.take()

    def write(self, data: bytes) -> None:
        """Say that it was written."""
        if not self.port.ended:
            self._harness.history.note(Passed, self.id, hop="client", data=data)
        self.port.written()

    async def write_until(self, reached: Callable[[], bool]) -> None:
        """Write whatever comes until `reached()`, which is asked in every turn of the event loop."""
        taking: asyncio.Task[bytes | None] | None = None
        async with asyncio.timeout(SECONDS):
            while not reached():
                taking = taking or asyncio.create_task(self.port.take())
                await asyncio.sleep(0)
                if taking.done():
                    if (data := taking.result()) is not None:
                        self.write(data)
                    taking = None
        if taking is not None:
            taking.cancel()

    async def read_on(self) -> str:
        """Write whatever comes to the end of the call; the reason it ended with, "OK" for none."""
        while (data := await self.take()) is not None:
            self.write(data)
        return self.close()

    def close(self) -> str:
        """The call is over: by its end, or because the caller is lost."""
        if not self._gone:
            self._gone = True
            assert self.run is not None
            self._harness.runner.caller_gone(self.run)
            ending = self.port.ending
            code, reason = ("OK", "") if ending is None else (ending.code.name, ending.reason_name)
            self._harness.history.note(Ended, self.id, code=code, reason=reason)
        return "OK" if self.port.ending is None else self.port.ending.reason_name


class Harness:
    """One Runner with a hook, a history and a clock that stands still.

    The hook has an array store with room for all runs, which counts what was reserved.
    """

    def __init__(self, *, hooked: bool = True, **settings: Any) -> None:
        self.history = History()
        self.clock = FakeClock()
        self.hook = HaltingHook(self.history)
        self.store = CountingStore()
        self.hook.array_store = self.store
        self.hooked = hooked
        self.asked = 0
        self.runner = Runner(
            WorkerSettings(**settings),
            instance="0" * 32,
            hook=self.hook if hooked else None,
            clock=self.clock,
        )

    def ask(
        self,
        play: Callable[[Context], Coroutine[Any, Any, None]],
        *,
        request_id: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
        session_id: str = "",
        validate: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> Caller:
        """Start a run of `play`. Refusal if it is not admitted."""
        caller = Caller(self, request_id or new_id())
        spec = RunSpec(
            request_id=caller.id,
            environment_name="function",
            environment=FunctionEnvironment(play, validate),
            task={},
            task_json="{}",
            sampling=SamplingParams(),
            model=SimulatedModel(),
            priority=priority,
            session_id=session_id,
            deadline=None if timeout is None else self.clock() + timeout,
        )
        caller.run = self.runner.start(spec, caller.port)
        self.asked += 1
        self.history.note(Asked, caller.id)
        return caller

    def cancel(self, request_id: str) -> str:
        """Cancel it; the outcome."""
        self.history.note(CancelSent, request_id)
        outcome = self.runner.cancel(request_id).name
        self.history.note(CancelAnswered, request_id, outcome=outcome)
        return outcome

    def confirm(self, request_id: str) -> str:
        """Confirm it; the outcome."""
        self.history.note(ConfirmSent, request_id)
        outcome = self.runner.confirm(request_id).name
        self.history.note(ConfirmAnswered, request_id, outcome=outcome)
        return outcome

    async def at_rest(self) -> None:
        """Wait until no hook is at work, and no run is live."""
        await within(self.runner.wait_replied())
        await within(self.runner.wait_hooks())


@asynccontextmanager
async def running(*, hooked: bool = True, **settings: Any) -> AsyncIterator[Harness]:
    """A harness whose promises are checked at the end."""
    harness = Harness(hooked=hooked, **settings)
    try:
        yield harness
        await harness.at_rest()
        oracle.promises_hold(harness.history, asked=harness.asked, hooked=hooked)
        harness.store.check()
    finally:
        await within(harness.runner.close())


async def within(reached: Awaitable[None]) -> None:
    """Wait for it, for so long."""
    async with asyncio.timeout(SECONDS):
        await reached


async def one_turn(context: Context) -> None:
    """The shortest episode: one trace with one node."""
    say(context, "done")


def say(context: Context, text: str) -> None:
    """Add a node with `text` to the last trace, or to a first one."""
    episode = context.episode
    trace = episode.traces[-1] if episode.traces else context.new_trace()
    trace.add_node(Message.user(text), [1], parent=len(trace.nodes) - 1 if trace.nodes else None)


def _nothing(episode: Episode) -> None:
    del episode
