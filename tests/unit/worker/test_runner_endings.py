"""Each of a run's suspension points, met by each of what can end it: who wins, who is told what, who
discards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.helpers.history import DiscardBegan, KeepBegan
from tests.helpers.runner_harness import Stop, one_turn, running, say, within

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from env_worker.domain import Episode
    from env_worker.envs.base import Context
    from tests.helpers.runner_harness import Caller, Harness

REASONS = {
    "cancel": "CANCEL_REQUESTED",
    "deadline": "DEADLINE",
    "caller lost": "CALLER_LOST",
    "stop": "WORKER_LOST",
}


class Scene:
    """A harness in which one run has come to a point."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.stop = Stop()
        self.other: Caller | None = None

    async def queued(self) -> Caller:
        self.other = self.harness.ask(self._halt_after_a_turn)
        await self.stop.reached()
        return self._ask(one_turn)

    async def before_its_first_trace(self) -> Caller:
        return await self._halted(self._halt)

    async def between_turns(self) -> Caller:
        return await self._halted(self._halt_after_a_turn)

    async def while_a_delta_is_sent(self) -> Caller:
        caller = self._ask(self._halt_after_a_turn)
        assert await caller.take() is not None
        return caller

    async def waiting_for_a_hook_thread(self) -> Caller:
        self.other = self.harness.ask(one_turn)
        self.harness.hook.in_keep[self.other.id] = lambda _: self.stop.block()
        await self.stop.reached()
        ended = Stop()

        async def play(context: Context) -> None:
            say(context, "done")
            await ended.halt()

        caller = self._ask(play)
        await ended.reached()
        ended.go()
        assert caller.run is not None
        return caller

    async def in_keep(self) -> Caller:
        caller = self._ask(one_turn)
        self.harness.hook.in_keep[caller.id] = lambda _: self.stop.block()
        await self.stop.reached()
        return caller

    async def while_the_final_flush_is_sent(self) -> Caller:
        caller = self._ask(one_turn)
        self.harness.hook.in_keep[caller.id] = _much_info
        data = await caller.take()
        while data is not None and len(data) < 1000:  # what streamed before keep
            caller.write(data)
            data = await caller.take()
        return caller

    async def while_the_reply_is_sent(self) -> Caller:
        caller = self._ask(one_turn)
        kept = Stop()
        self.harness.hook.in_keep[caller.id] = lambda _: kept.block()
        await kept.reached()
        kept.go()
        data = await caller.take()
        while data is not None and not _has_reply(data):
            caller.write(data)
            data = await caller.take()
        assert data is not None
        return caller

    async def _halted(self, play: Callable[[Context], Coroutine[Any, Any, None]]) -> Caller:
        caller = self._ask(play)
        await self.stop.reached()
        return caller

    def _ask(self, play: Callable[[Context], Coroutine[Any, Any, None]]) -> Caller:
        return self.harness.ask(play, timeout=3600)

    async def _halt(self, context: Context) -> None:
        await self.stop.halt()
        say(context, "too late")

    async def _halt_after_a_turn(self, context: Context) -> None:
        say(context, "first")
        await self.stop.halt()


def _much_info(episode: Episode) -> None:
    for key in ("a", "b"):
        episode.traces[0].info[key] = "x" * 800_000


def _has_reply(data: bytes) -> bool:
    from envtrio.v1 import delta_pb2

    return delta_pb2.DeltaStream.FromString(data).HasField("reply")


def end(harness: Harness, caller: Caller, how: str) -> None:
    """What ends the run, all at once."""
    if how == "cancel":
        assert harness.cancel(caller.id) == "ABORTED"
    elif how == "deadline":
        harness.clock.advance(3600)
        caller.close()
    elif how == "caller lost":
        caller.close()
    else:
        harness.runner.drain()
        harness.runner.stop_runs()


BEFORE_KEEP = (
    Scene.queued,
    Scene.before_its_first_trace,
    Scene.between_turns,
    Scene.while_a_delta_is_sent,
    Scene.waiting_for_a_hook_thread,
)
FROM_KEEP_ON = (Scene.in_keep, Scene.while_the_final_flush_is_sent, Scene.while_the_reply_is_sent)


@pytest.mark.parametrize("how", REASONS)
@pytest.mark.parametrize("point", BEFORE_KEEP, ids=lambda point: point.__name__)
async def test_an_end_before_keep_calls_no_hook(
    point: Callable[[Scene], Coroutine[Any, Any, Caller]], how: str
) -> None:
    places = 1 if point is Scene.queued else 2
    async with running(max_concurrent=places, hook_threads=1) as harness:
        scene = Scene(harness)
        caller = await point(scene)
        end(harness, caller, how)
        expected = "NOT_ADMITTED" if how == "stop" and point is Scene.queued else REASONS[how]
        # Answered at once: nothing was let go yet.
        assert await caller.read_on() == expected
        scene.stop.go()
        if scene.other is not None:
            await scene.other.read_on()
        await harness.at_rest()
        assert not harness.history.of(caller.id, KeepBegan, DiscardBegan)
        assert harness.runner.table.get(caller.id) is None


@pytest.mark.parametrize("how", REASONS)
@pytest.mark.parametrize("point", FROM_KEEP_ON, ids=lambda point: point.__name__)
async def test_an_end_from_keep_on_discards_once(
    point: Callable[[Scene], Coroutine[Any, Any, Caller]], how: str
) -> None:
    async with running(hook_threads=1) as harness:
        scene = Scene(harness)
        caller = await point(scene)
        end(harness, caller, how)
        assert await caller.read_on() == REASONS[how]
        if point is Scene.in_keep:
            assert not harness.history.of(caller.id, DiscardBegan), "discard was called while keep runs"
        scene.stop.go()
        await harness.at_rest()
        assert len(harness.history.of(caller.id, DiscardBegan)) == 1
        assert harness.cancel(caller.id) == "ABORTED"


@pytest.mark.parametrize("second", REASONS)
@pytest.mark.parametrize("first", REASONS)
async def test_two_ends_together_discard_once(first: str, second: str) -> None:
    async with running() as harness:
        scene = Scene(harness)
        caller = await scene.in_keep()
        end(harness, caller, first)
        end(harness, caller, second)
        assert await caller.read_on() == REASONS[first]
        scene.stop.go()
        await harness.at_rest()
        assert len(harness.history.of(caller.id, DiscardBegan)) == 1


@pytest.mark.parametrize("how", ["deadline", "caller lost", "stop"])
async def test_after_the_reply_only_a_cancel_takes_it_back(how: str) -> None:
    async with running() as harness:
        caller = harness.ask(one_turn, timeout=3600)
        assert await caller.read_on() == "OK"
        end(harness, caller, how)
        await harness.at_rest()
        assert not harness.history.of(caller.id, DiscardBegan)
        assert harness.cancel(caller.id) == "DISCARDED"
        await harness.at_rest()
        assert len(harness.history.of(caller.id, DiscardBegan)) == 1


async def test_the_deadline_ends_a_run_without_anyone_looking() -> None:
    async with running() as harness:
        scene = Scene(harness)
        caller = harness.ask(scene._halt_after_a_turn, timeout=0.01)
        await scene.stop.reached()
        assert await caller.read_on() == "DEADLINE"


async def test_a_queued_run_is_carried_once_a_place_is_free_and_by_priority() -> None:
    async with running(max_concurrent=1) as harness:
        scene = Scene(harness)
        first = harness.ask(scene._halt_after_a_turn)
        await scene.stop.reached()
        order: list[str] = []

        def named(name: str) -> Callable[[Context], Coroutine[Any, Any, None]]:
            async def play(context: Context) -> None:
                order.append(name)
                say(context, name)

            return play

        callers = [
            harness.ask(named(name), priority=priority) for name, priority in (("a", 0), ("b", 5), ("c", 0))
        ]
        scene.stop.go()
        for caller in (first, callers[1], callers[0], callers[2]):
            assert await caller.read_on() == "OK"
        assert order == ["b", "a", "c"]
        await within(harness.runner.wait_replied())
