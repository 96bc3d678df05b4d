"""Every state of a run, met by all that can come from outside: who wins, who is told what, who discards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.helpers.history import DiscardBegan, KeepBegan
from tests.helpers.runner_harness import running
from tests.helpers.scenes import BEFORE_KEEP, DEADLINE_SECONDS, FROM_KEEP_ON, REPLIED, SESSION, Scene

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.helpers.runner_harness import Caller, Harness
    from tests.helpers.scenes import Act

    Point = Callable[[Scene, Act], Coroutine[Any, Any, Caller]]


def cancel(harness: Harness, caller: Caller) -> str:
    return harness.cancel(caller.id)


def deadline(harness: Harness, caller: Caller) -> str:
    harness.clock.advance(DEADLINE_SECONDS)
    return caller.close()


def lost_caller(harness: Harness, caller: Caller) -> str:
    return caller.close()


def stop(harness: Harness, caller: Caller) -> str:
    harness.runner.drain()
    harness.runner.stop_runs()
    return ""


def lost_session(harness: Harness, caller: Caller) -> str:
    return f"ended {harness.runner.lose_session(SESSION)}"


def confirm(harness: Harness, caller: Caller) -> str:
    return harness.confirm(caller.id)


REASONS: Final = {
    cancel: "CANCEL_REQUESTED",
    deadline: "DEADLINE",
    lost_caller: "CALLER_LOST",
    stop: "WORKER_LOST",
    lost_session: "SESSION_LOST",
}
TAKE_BACK: Final = (cancel, lost_session)
EVENTS: Final = (*REASONS, confirm)
NOT_BEGUN: Final = (Scene.before_the_task_starts, Scene.waiting_for_a_slot)


def by_name(function: object) -> str:
    return str(getattr(function, "__name__", ""))


class Story:
    """A run that was brought to `point`, where `event` happened."""

    def __init__(self, harness: Harness, scene: Scene, caller: Caller, told: list[str]) -> None:
        self.harness = harness
        self.scene = scene
        self.caller = caller
        (self.told,) = told

    async def let_go(self) -> None:
        """Nothing is held up any more; the other run comes to its end."""
        self.scene.stop.go()
        if self.scene.other is not None:
            await self.scene.other.read_on()

    @property
    def keeps(self) -> int:
        return len(self.harness.history.of(self.caller.id, KeepBegan))

    @property
    def discards(self) -> int:
        return len(self.harness.history.of(self.caller.id, DiscardBegan))


async def story(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, point: Point, event: Callable[[Harness, Caller], str]
) -> Story:
    scene, told = Scene(harness, monkeypatch), list[str]()
    caller = await point(scene, lambda caller: told.append(event(harness, caller)))
    return Story(harness, scene, caller, told)


def places(point: Point) -> int:
    return 1 if point is Scene.waiting_for_a_slot else 2


@pytest.mark.parametrize("event", REASONS, ids=by_name)
@pytest.mark.parametrize("point", BEFORE_KEEP, ids=by_name)
async def test_before_keep_it_is_ended_and_no_hook_hears_of_it(
    point: Point, event: Callable[[Harness, Caller], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(max_concurrent=places(point), hook_threads=1) as harness:
        run = await story(harness, monkeypatch, point, event)
        expected = "NOT_ADMITTED" if event is stop and point in NOT_BEGUN else REASONS[event]
        assert await run.caller.read_on() == expected, "answered at once: nothing was let go yet"
        await run.let_go()
        await harness.at_rest()
        assert (run.keeps, run.discards) == (0, 0)
        assert harness.runner.table.get(run.caller.id) is None
        assert harness.cancel(run.caller.id) == "ABORTED"
        assert harness.confirm(run.caller.id) == "DISCARDED"


@pytest.mark.parametrize("event", REASONS, ids=by_name)
@pytest.mark.parametrize("point", FROM_KEEP_ON, ids=by_name)
async def test_from_keep_to_the_reply_it_is_ended_and_discarded_once(
    point: Point, event: Callable[[Harness, Caller], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(hook_threads=1) as harness:
        run = await story(harness, monkeypatch, point, event)
        assert await run.caller.read_on() == REASONS[event], "answered at once: nothing was let go yet"
        if point is Scene.while_keep_runs:
            assert run.discards == 0, "discard was called while keep runs"
        await run.let_go()
        await harness.at_rest()
        assert (run.keeps, run.discards) == (1, 1)
        for another in EVENTS:
            another(harness, run.caller)
        await harness.at_rest()
        assert run.discards == 1
        assert harness.cancel(run.caller.id) == "ABORTED"
        assert harness.confirm(run.caller.id) == "DISCARDED"


@pytest.mark.parametrize("point", [*BEFORE_KEEP, *FROM_KEEP_ON], ids=by_name)
async def test_before_the_reply_a_confirmation_changes_nothing(
    point: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(max_concurrent=places(point), hook_threads=1) as harness:
        run = await story(harness, monkeypatch, point, confirm)
        assert run.told == "UNKNOWN"
        await run.let_go()
        assert await run.caller.read_on() == "OK"
        assert harness.runner.table.open_windows == (1 if run.scene.other is None else 2)
        assert harness.confirm(run.caller.id) == "CONFIRMED"


@pytest.mark.parametrize("event", TAKE_BACK, ids=by_name)
@pytest.mark.parametrize("point", REPLIED, ids=by_name)
async def test_within_the_window_a_cancel_or_a_lost_session_takes_it_back(
    point: Point, event: Callable[[Harness, Caller], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(hook_threads=1) as harness:
        run = await story(harness, monkeypatch, point, event)
        assert run.told == ("DISCARDED" if event is cancel else "ended 1")
        assert await run.caller.read_on() == "OK"
        await harness.at_rest()
        assert (run.keeps, run.discards) == (1, 1)
        for another in EVENTS:
            another(harness, run.caller)
        await harness.at_rest()
        assert run.discards == 1
        assert harness.cancel(run.caller.id) == "DISCARDED"
        assert harness.confirm(run.caller.id) == "DISCARDED"


@pytest.mark.parametrize("event", [deadline, lost_caller, stop, confirm], ids=by_name)
@pytest.mark.parametrize("point", REPLIED, ids=by_name)
async def test_within_the_window_nothing_else_does_and_a_confirmation_ends_it(
    point: Point, event: Callable[[Harness, Caller], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(hook_threads=1) as harness:
        run = await story(harness, monkeypatch, point, event)
        assert await run.caller.read_on() == "OK"
        assert harness.runner.table.open_windows == (0 if event is confirm else 1)
        assert harness.confirm(run.caller.id) == "CONFIRMED"
        assert harness.runner.table.open_windows == 0
        for another in EVENTS:
            another(harness, run.caller)
        await harness.at_rest()
        assert (run.keeps, run.discards) == (1, 0)
        assert harness.cancel(run.caller.id) == "TOO_LATE"
        assert harness.runner.counters["confirmed"] == 1


@pytest.mark.parametrize("event", EVENTS, ids=by_name)
async def test_after_the_window_nothing_changes_it_any_more(
    event: Callable[[Harness, Caller], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(hook_threads=1) as harness:
        run = await story(harness, monkeypatch, Scene.after_the_window, event)
        await harness.at_rest()
        assert (run.keeps, run.discards) == (1, 0)
        assert harness.cancel(run.caller.id) == "TOO_LATE"
        assert harness.confirm(run.caller.id) == "CONFIRMED"
