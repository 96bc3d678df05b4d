"""Owned tasks and bounded waits."""

from __future__ import annotations

import asyncio

import pytest

from env_broker.clock import MonotonicClock, within
from env_broker.tasks import Errands, background, first_of
from tests.helpers.clock import FakeClock


async def forever(ended: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("ended")


async def fail() -> None:
    raise ValueError("broken")


async def nothing() -> None:
    return None


async def test_within_gives_the_result_or_ends_the_work() -> None:
    async def answer() -> int:
        return 7

    assert await within(MonotonicClock(), 5, answer()) == 7
    with pytest.raises(ValueError, match="broken"):
        await within(MonotonicClock(), 5, fail())
    clock, ended = FakeClock(), list[str]()
    waiting = asyncio.create_task(within(clock, 5, forever(ended)))
    await clock.sleepers(1)
    clock.advance(5)
    with pytest.raises(TimeoutError, match="5 s"):
        await waiting
    assert ended == ["ended"]


async def test_within_that_is_cancelled_ends_its_work() -> None:
    clock, ended = FakeClock(), list[str]()
    waiting = asyncio.create_task(within(clock, 5, forever(ended)))
    await clock.sleepers(1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert ended == ["ended"]


async def test_first_of_ends_the_others() -> None:
    ended: list[str] = []
    await first_of(forever(ended), nothing())
    with pytest.raises(ValueError, match="broken"):
        await first_of(forever(ended), fail())
    assert ended == ["ended"] * 2


async def test_errands_are_owned_bounded_and_ended(caplog: pytest.LogCaptureFixture) -> None:
    errands, ended = Errands(limit=2), list[str]()
    assert errands.start(forever(ended), "a")
    assert errands.start(fail(), "b")
    assert not errands.start(nothing(), "c")
    assert len(errands) == 2
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert "task=b failed" in caplog.text
    assert "errand=c refused" in caplog.text
    assert len(errands) == 1
    await errands.close(0)
    assert ended == ["ended"]
    assert len(errands) == 0
    await errands.close(0)


async def test_a_background_task_that_fails_is_in_the_log_and_one_that_is_cancelled_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = [background(fail(), "a"), background(forever([]), "b")]
    await asyncio.wait(tasks[:1])
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert "task=a failed" in caplog.text
    assert "task=b" not in caplog.text
