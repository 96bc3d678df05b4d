"""Room for a run's training arrays: reserved before its admission, given back once, however it ends.

`running` checks at the end of every test of the runner that nothing is left reserved and nothing was given
back twice; these tests add when that happens, and what a run hears that finds no room.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from env_worker.status import Refusal
from tests.helpers.history import DiscardBegan, KeepBegan
from tests.helpers.runner_harness import one_turn, running, say, within
from tests.helpers.scenes import BEFORE_KEEP, FROM_KEEP_ON, REPLIED, SESSION, Scene
from tests.helpers.stub_client import new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from env_worker.domain import Episode
    from env_worker.envs.base import Context
    from tests.helpers.runner_harness import Caller, Harness
    from tests.helpers.scenes import Act

    Point = Callable[[Scene, Act], Coroutine[Any, Any, Caller]]

ENDS: dict[str, Callable[[Harness, Caller], object]] = {
    "cancel": lambda harness, caller: harness.cancel(caller.id),
    "lost caller": lambda harness, caller: caller.close(),
    "lost session": lambda harness, caller: harness.runner.lose_session(SESSION),
    "stop": lambda harness, caller: (harness.runner.drain(), harness.runner.stop_runs()),
}


def by_name(function: object) -> str:
    return str(getattr(function, "__name__", ""))


def places(point: Point) -> int:
    return 1 if point is Scene.waiting_for_a_slot else 2


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("point", BEFORE_KEEP, ids=by_name)
async def test_a_run_that_ends_before_its_keep_gives_its_room_back_at_once(point: Point, end: str) -> None:
    async with running(max_concurrent=places(point), hook_threads=1) as harness:
        reserved: list[tuple[int, int]] = []

        def act(caller: Caller) -> None:
            before = harness.store.open_reservations
            ENDS[end](harness, caller)
            reserved.append((before, harness.store.open_reservations))

        scene = Scene(harness)
        caller = await point(scene, act)
        others = 0 if scene.other is None else 1
        # The other run is ended too by what ends all of them, unless it is in its keep.
        left = 0 if end == "stop" and point is not Scene.waiting_for_a_hook_thread else others
        assert reserved == [(1 + others, left)]
        assert await caller.read_on() != "OK"
        scene.stop.go()
        if scene.other is not None:
            await scene.other.read_on()


@pytest.mark.parametrize("end", ENDS)
async def test_a_run_that_ends_in_its_keep_holds_its_room_until_that_returns(end: str) -> None:
    async with running(hook_threads=1) as harness:
        scene = Scene(harness)
        caller = await scene.while_keep_runs(lambda caller: ENDS[end](harness, caller))
        assert await caller.read_on() != "OK", "its caller is answered at once"
        harness.store.check(open_reservations=1)
        scene.stop.go()
        await harness.at_rest()
        harness.store.check()


@pytest.mark.parametrize("point", [*FROM_KEEP_ON[1:], *REPLIED], ids=by_name)
async def test_once_keep_has_returned_what_was_kept_counts_and_no_room_is_reserved(
    point: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(hook_threads=1) as harness:
        reserved: list[int] = []
        caller = await point(
            Scene(harness, monkeypatch), lambda _: reserved.append(harness.store.open_reservations)
        )
        assert await caller.read_on() == "OK"
        assert reserved == [0]


async def test_a_keep_that_raises_gives_the_room_back() -> None:
    async with running() as harness:

        def fails(_: Episode) -> None:
            harness.store.check(open_reservations=1)
            raise OSError("no memory")

        run = new_id()
        harness.hook.in_keep[run] = fails
        assert await harness.ask(one_turn, request_id=run).read_on() == "HOOK_FAILED"
        harness.store.check()


async def test_an_environment_that_fails_gives_the_room_back() -> None:
    async def play(_: Context) -> None:
        raise OSError("no data set")

    async with running() as harness:
        assert await harness.ask(play).read_on() == "ENVIRONMENT_FAILED"
        harness.store.check()


async def test_a_run_that_finds_no_room_leaves_nothing_behind_and_may_come_again() -> None:
    async with running() as harness:
        harness.store.room = 1
        scene = Scene(harness)
        first = harness.ask(scene.halt_after_a_turn)
        run = new_id()
        for _ in range(2):
            with pytest.raises(Refusal) as refused:
                harness.ask(one_turn, request_id=run)
            refusal = refused.value
            assert (refusal.code.name, refusal.reason_name) == ("RESOURCE_EXHAUSTED", "ARRAY_BUDGET")
            assert refusal.retry_seconds == 1.0
            assert (refusal.metadata["value"], refusal.metadata["limit"]) == ("2", "1")
            assert "release arrays" in refusal.message
            assert harness.runner.table.get(run) is None
            assert (len(harness.runner.table), harness.runner.slots.held) == (1, 1)
        assert harness.runner.no_array_room.startswith("array budget full: 1 runs are reserved, all that fit")
        scene.stop.go()
        assert await first.read_on() == "OK"
        assert harness.runner.no_array_room == ""
        assert await harness.ask(one_turn, request_id=run).read_on() == "OK"


async def test_what_is_refused_for_another_reason_reserves_nothing() -> None:
    async with running(max_concurrent=1, max_queue=0) as harness:
        scene = Scene(harness)
        first = harness.ask(scene.halt_after_a_turn)
        await scene.stop.reached()
        with pytest.raises(Refusal, match="wait for one of this worker's places"):
            harness.ask(one_turn)
        scene.stop.go()
        assert await first.read_on() == "OK"
        await within(harness.runner.wait_until(lambda: not harness.runner.slots.held))
        with pytest.raises(Refusal, match="32 lower-case"):
            harness.ask(one_turn, request_id="no-id")
        with pytest.raises(Refusal, match="was seen"):
            harness.ask(one_turn, request_id=first.id)
        early = new_id()
        assert harness.cancel(early) == "REMEMBERED"
        with pytest.raises(Refusal, match="a Cancel named it"):
            harness.ask(one_turn, request_id=early)
        harness.store.check()
        harness.runner.drain()
        with pytest.raises(Refusal, match="takes no new runs"):
            harness.ask(one_turn)


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_to_many_runs_nothing_stays_reserved(seed: int) -> None:
    chance = random.Random(seed)

    async def play(context: Context) -> None:
        for turn in range(chance.randrange(3)):
            say(context, str(turn))
            await asyncio.sleep(0)
        if chance.random() < 0.2:
            raise OSError("bad luck")

    def keep(_: Episode) -> None:
        if chance.random() < 0.2:
            raise OSError("bad luck")

    async with running(max_concurrent=4, max_queue=6, hook_threads=2) as harness:
        harness.store.room = 8
        callers: list[Caller] = []
        async with asyncio.TaskGroup() as reading:
            for _ in range(60):
                run = new_id()
                harness.hook.in_keep[run] = keep
                with suppress(Refusal):
                    callers.append(harness.ask(play, request_id=run, timeout=25.0))
                    reading.create_task(callers[-1].read_on())
                assert harness.store.open_reservations <= 8
                if chance.random() < 0.4:
                    ENDS[chance.choice(["cancel", "lost caller"])](harness, chance.choice(callers))
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
        await harness.at_rest()
        harness.store.check()
        assert harness.store.reservations


async def test_a_hook_without_a_store_reserves_nothing() -> None:
    async with running() as harness:
        harness.hook.array_store = None
        caller = harness.ask(one_turn)
        assert await caller.read_on() == "OK"
        assert harness.store.reservations == []
        assert len(harness.history.of(caller.id, KeepBegan)) == 1
        assert not harness.history.of(caller.id, DiscardBegan)
