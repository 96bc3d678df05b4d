"""What ends a run: the first of two, the deadline by itself, and what cannot end it once it has replied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.helpers.history import DiscardBegan
from tests.helpers.runner_harness import one_turn, running, say, within
from tests.helpers.scenes import DEADLINE_SECONDS, Scene

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from env_worker.envs.base import Context
    from tests.helpers.runner_harness import Caller, Harness

REASONS = {
    "cancel": "CANCEL_REQUESTED",
    "deadline": "DEADLINE",
    "caller lost": "CALLER_LOST",
    "stop": "WORKER_LOST",
}


def end(harness: Harness, caller: Caller, how: str) -> None:
    """What ends the run, all at once."""
    if how == "cancel":
        assert harness.cancel(caller.id) == "ABORTED"
    elif how == "deadline":
        harness.clock.advance(DEADLINE_SECONDS)
        caller.close()
    elif how == "caller lost":
        caller.close()
    else:
        harness.runner.drain()
        harness.runner.stop_runs()


@pytest.mark.parametrize("second", REASONS)
@pytest.mark.parametrize("first", REASONS)
async def test_two_ends_together_discard_once(first: str, second: str) -> None:
    async with running() as harness:
        scene = Scene(harness)
        caller = await scene.while_keep_runs(lambda _: None)
        end(harness, caller, first)
        end(harness, caller, second)
        assert await caller.read_on() == REASONS[first]
        scene.stop.go()
        await harness.at_rest()
        assert len(harness.history.of(caller.id, DiscardBegan)) == 1


@pytest.mark.parametrize("how", ["deadline", "caller lost", "stop"])
async def test_after_the_reply_only_a_cancel_takes_it_back(how: str) -> None:
    async with running() as harness:
        caller = harness.ask(one_turn, timeout=DEADLINE_SECONDS)
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
        caller = harness.ask(scene.halt_after_a_turn, timeout=0.01)
        await scene.stop.reached()
        assert await caller.read_on() == "DEADLINE"


async def test_a_queued_run_is_carried_once_a_place_is_free_and_by_priority() -> None:
    async with running(max_concurrent=1) as harness:
        scene = Scene(harness)
        first = harness.ask(scene.halt_after_a_turn)
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
