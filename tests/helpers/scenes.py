"""One run that has come to a certain point of its life, where a test then acts.

Each point is a method: it asks for a run, brings it there, calls `act` with it, and returns it. `stop` holds
up whatever the point had to hold up; `other` is a second run that stood in the way, if there had to be one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from envtrio.v1 import delta_pb2

from env_worker import wire
from env_worker.domain.ledger import State
from tests.helpers.runner_harness import Stop, one_turn, say, within

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import pytest

    from env_worker.domain import Episode
    from env_worker.envs.base import Context
    from tests.helpers.runner_harness import Caller, Harness

Act: TypeAlias = "Callable[[Caller], None]"
SESSION: Final = "5e551047" * 4
"""The session that the run names; `other` names none."""
DEADLINE_SECONDS: Final = 25.0
"""Less than half a window, so that a deadline that passes closes no window by itself."""


class Scene:
    """A harness in which one run comes to a point. Needs `hook_threads=1`."""

    def __init__(self, harness: Harness, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
        self.harness = harness
        self.stop = Stop()
        self.other: Caller | None = None
        self._monkeypatch = monkeypatch

    # Before keep.

    async def before_the_task_starts(self, act: Act) -> Caller:
        caller = self._ask(one_turn)
        act(caller)  # no await since it was asked for, so the task has not had its first step
        return caller

    async def waiting_for_a_slot(self, act: Act) -> Caller:
        """Needs `max_concurrent=1`."""
        self.other = self.harness.ask(self.halt_after_a_turn)
        await self.stop.reached()
        caller = self._ask(one_turn)
        await within(self.harness.runner.wait_until(lambda: self.harness.runner.slots.waiting == 1))
        act(caller)
        return caller

    async def before_its_first_trace(self, act: Act) -> Caller:
        return await self._halted(self._halt, act)

    async def between_turns(self, act: Act) -> Caller:
        caller = self._ask(self.halt_after_a_turn)
        data = await caller.take()
        assert data is not None
        caller.write(data)
        act(caller)
        return caller

    async def while_a_send_is_blocked(self, act: Act) -> Caller:
        caller = self._ask(self.halt_after_a_turn)
        assert await caller.take() is not None
        act(caller)
        return caller

    async def waiting_for_a_hook_thread(self, act: Act) -> Caller:
        self.other = self.harness.ask(one_turn)
        self.harness.hook.in_keep[self.other.id] = lambda _: self.stop.block()
        await self.other.write_until(lambda: self.stop.is_reached)
        caller = self._ask(one_turn)
        threads = self.harness.runner._threads.free_keep_threads
        await caller.write_until(lambda: bool(threads._waiters))
        act(caller)
        return caller

    # From keep to the reply.

    async def while_keep_runs(self, act: Act) -> Caller:
        caller = self._ask(one_turn)
        self.harness.hook.in_keep[caller.id] = lambda _: self.stop.block()
        await caller.write_until(lambda: self.stop.is_reached)
        act(caller)
        return caller

    async def after_keep(self, act: Act) -> Caller:
        caller = await self._after_keep()
        assert caller.run is not None
        entry = caller.run.entry
        await within(self.harness.runner.wait_until(lambda: entry.state is State.KEPT))
        act(caller)
        return caller

    async def during_the_final_flush(self, act: Act) -> Caller:
        caller = self._ask(one_turn)
        self.harness.hook.in_keep[caller.id] = _much_info
        data = await caller.take()
        while data is not None and len(data) < 1000:  # what streamed before keep
            caller.write(data)
            data = await caller.take()
        assert data is not None
        assert not _has_reply(data)
        act(caller)
        return caller

    async def while_the_reply_is_encoded(self, act: Act) -> Caller:
        assert self._monkeypatch is not None
        caller, head, acted = self._ask(one_turn), wire.head, Stop()

        def head_and_act(*arguments: Any, **named: Any) -> Any:
            act(caller)
            acted.go()
            acted.block()
            return head(*arguments, **named)

        self._monkeypatch.setattr(wire, "head", head_and_act)
        await caller.write_until(lambda: acted.is_reached)
        return caller

    async def while_the_reply_is_written(self, act: Act) -> Caller:
        caller, _ = await self._with_its_reply()
        act(caller)
        return caller

    # From the reply on.

    async def between_reply_and_ok(self, act: Act) -> Caller:
        caller, data = await self._with_its_reply()
        caller.write(data)
        act(caller)
        return caller

    async def in_the_window(self, act: Act) -> Caller:
        caller = self._ask(one_turn)
        assert await caller.read_on() == "OK"
        act(caller)
        return caller

    async def after_the_window(self, act: Act) -> Caller:
        caller = self._ask(one_turn)
        assert await caller.read_on() == "OK"
        self.harness.clock.advance(self.harness.runner.table.late_cancel_seconds)
        self.harness.runner.expire()
        act(caller)
        return caller

    async def halt_after_a_turn(self, context: Context) -> None:
        """An environment that makes a turn and then stops at `stop`."""
        say(context, "first")
        await self.stop.halt()

    async def _halt(self, context: Context) -> None:
        await self.stop.halt()
        say(context, "first")

    def _ask(self, play: Callable[[Context], Coroutine[Any, Any, None]]) -> Caller:
        return self.harness.ask(play, timeout=DEADLINE_SECONDS, session_id=SESSION)

    async def _halted(self, play: Callable[[Context], Coroutine[Any, Any, None]], act: Act) -> Caller:
        caller = self._ask(play)
        await self.stop.reached()
        act(caller)
        return caller

    async def _after_keep(self) -> Caller:
        """A run whose keep is about to return, and all of it was written."""
        caller, began = self._ask(one_turn), Stop()
        self.harness.hook.in_keep[caller.id] = lambda _: began.block()
        await caller.write_until(lambda: began.is_reached)
        began.go()
        return caller

    async def _with_its_reply(self) -> tuple[Caller, bytes]:
        caller = await self._after_keep()
        data = await caller.take()
        while data is not None and not _has_reply(data):
            caller.write(data)
            data = await caller.take()
        assert data is not None
        return caller, data


BEFORE_KEEP: Final = (
    Scene.before_the_task_starts,
    Scene.waiting_for_a_slot,
    Scene.before_its_first_trace,
    Scene.between_turns,
    Scene.while_a_send_is_blocked,
    Scene.waiting_for_a_hook_thread,
)
FROM_KEEP_ON: Final = (
    Scene.while_keep_runs,
    Scene.after_keep,
    Scene.during_the_final_flush,
    Scene.while_the_reply_is_encoded,
    Scene.while_the_reply_is_written,
)
REPLIED: Final = (Scene.between_reply_and_ok, Scene.in_the_window)


def _much_info(episode: Episode) -> None:
    for key in ("a", "b"):
        episode.traces[0].info[key] = "x" * 800_000


def _has_reply(data: bytes) -> bool:
    return delta_pb2.DeltaStream.FromString(data).HasField("reply")
