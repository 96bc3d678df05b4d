"""The watch over the environments' loop: what it says, when it gives up, and what does not count."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from env_worker.environment_loop import EnvironmentLoop
from env_worker.stuck import PING_SECONDS, StuckWatch
from tests.helpers.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from typing import Any

A, B = "a" * 32, "b" * 32
SECONDS = 5.0


class Watched:
    """A watch with a clock by hand over a loop with a run that can block it."""

    def __init__(self, stuck_seconds: float) -> None:
        self.loop = EnvironmentLoop()
        self.loop.start()
        self.clock = FakeClock()
        self.given_up: list[str] = []
        self.watch = StuckWatch(
            self.loop, stuck_seconds=stuck_seconds, give_up=self.given_up.append, clock=self.clock
        )
        self.blocking, self.go_on = threading.Event(), threading.Event()

    def after(self, seconds: float) -> None:
        """Let time pass, and look as often as the watch does."""
        for _ in range(round(seconds / PING_SECONDS)):
            self.clock.advance(PING_SECONDS)
            self.watch.look()

    def block(self) -> None:
        """Hold up whoever calls it until `end_block`."""
        self.blocking.set()
        self.go_on.wait(SECONDS)

    async def blocked_by(self, coroutine: Coroutine[Any, Any, None], run: str) -> None:
        """Submit it and wait until it blocks, and a ping is out."""
        self.loop.submit(coroutine, run)
        assert await asyncio.to_thread(self.blocking.wait, SECONDS)
        self.watch.look()

    async def turn(self) -> None:
        """Wait until the loop has answered what it was asked so far."""
        turned = threading.Event()
        self.loop.ping(turned.set)
        assert await asyncio.to_thread(turned.wait, SECONDS)

    async def end_block(self) -> None:
        self.go_on.set()
        await self.turn()


@asynccontextmanager
async def watched(stuck_seconds: float = 120.0) -> AsyncIterator[Watched]:
    watched = Watched(stuck_seconds)
    try:
        await watched.turn()
        yield watched
    finally:
        watched.go_on.set()
        watched.watch.close()
        watched.loop.stop()


async def test_a_loop_that_turns_is_not_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    async with watched() as subject:
        for _ in range(300):
            subject.after(PING_SECONDS)
            await subject.turn()
    assert not caplog.records


async def test_a_blocked_loop_is_named_with_the_run_the_place_and_who_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with watched() as subject:

        async def play() -> None:
            subject.block()

        await subject.blocked_by(play(), A)
        for _ in range(3):
            subject.loop.submit(asyncio.sleep(0), B)
        subject.after(4.5)
        assert not caplog.records
        subject.after(0.5)
        (said,) = [record.getMessage() for record in caplog.records]
        assert f"run={A[:8]} " in said
        assert "for 5.0 s" in said
        assert "Watched.block" in said
        assert "play:" in said
        assert "asyncio.events" not in said
        assert "3 other runs" in said
        assert "--stuck-seconds 120" in said


async def test_it_is_repeated_after_doubling_pauses_and_its_end_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with watched() as subject:

        async def play() -> None:
            subject.block()

        await subject.blocked_by(play(), A)
        subject.after(45)
        assert [record.levelname for record in caplog.records] == ["WARNING"] * 4, "at 5, 10, 20 and 40 s"
        await subject.end_block()
        subject.watch.look()
        assert "goes on, after 45.0 s" in caplog.records[-1].getMessage()
        assert caplog.records[-1].levelname == "INFO"


async def test_after_stuck_seconds_it_gives_up_once() -> None:
    async with watched(stuck_seconds=2.0) as subject:

        async def play() -> None:
            subject.block()

        await subject.blocked_by(play(), A)
        subject.after(1.5)
        assert not subject.given_up
        subject.after(60)
        (reason,) = subject.given_up
        assert f"run={A[:8]} " in reason


async def test_a_warning_after_it_gave_up_does_not_threaten_any_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with watched(stuck_seconds=7.0) as subject:

        async def play() -> None:
            subject.block()

        await subject.blocked_by(play(), A)
        subject.after(10)
        before, after = [record.getMessage() for record in caplog.records]
        assert "gives up after --stuck-seconds 7" in before
        assert "has given up after --stuck-seconds 7" in after


async def test_what_blocks_it_is_said_while_it_does() -> None:
    async with watched() as subject:

        async def play() -> None:
            subject.block()

        await subject.blocked_by(play(), A)
        subject.after(0.5)
        assert subject.watch.blocked == "", "that may be nothing"
        subject.after(11.5)
        said = subject.watch.blocked
        assert said.startswith(f"run {A[:8]} has blocked the environments' loop for 12 s at ")
        assert "Watched.block" in said
        await subject.end_block()
        subject.watch.look()
        assert subject.watch.blocked == ""


async def test_time_in_which_the_process_stood_still_does_not_count() -> None:
    async with watched(stuck_seconds=3.0) as subject:

        async def play() -> None:
            subject.block()

        await subject.blocked_by(play(), A)
        for _ in range(2):
            subject.clock.advance(1000)
            subject.watch.look()
        assert not subject.given_up, "each counts for two pings"
        subject.after(1.0)
        assert subject.given_up


@pytest.mark.parametrize("how", ["a task of its own", "a callback"])
async def test_what_a_run_has_started_is_named_as_far_as_that_is_known(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched() as subject:

        async def tool() -> None:
            subject.block()

        async def play() -> None:
            if how == "a callback":
                asyncio.get_running_loop().call_soon(subject.block)
            else:
                await asyncio.gather(tool(), asyncio.sleep(0))

        await subject.blocked_by(play(), A)
        subject.after(5)
        (said,) = [record.getMessage() for record in caplog.records]
        assert ("run=unknown" if how == "a callback" else f"run={A[:8]} ") in said
        assert "Watched.block" in said


async def test_a_deep_stack_is_shown_from_both_ends() -> None:
    async with watched() as subject:

        def deep(depth: int, then: Callable[[], None]) -> None:
            if depth == 0:
                then()
            else:
                deep(depth - 1, then)

        async def play() -> None:
            deep(50, subject.block)

        await subject.blocked_by(play(), A)
        stack = subject.loop.whereabouts().stack.split(" < ")
        assert len(stack) == 7
        assert "play" in stack[-1]
        assert stack[3] == "..."


async def test_the_loop_is_asked_by_itself_and_not_after_its_end() -> None:
    loop = EnvironmentLoop()
    loop.start()
    watch = StuckWatch(loop, stuck_seconds=1, give_up=pytest.fail)
    assert watch._timer.when() - asyncio.get_running_loop().time() <= PING_SECONDS
    loop.stop()
    await asyncio.to_thread(loop._thread.join, SECONDS)
    watch._ping()
    watch.close()
    assert watch._timer.cancelled()
