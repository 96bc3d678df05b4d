"""The fake clock wakes whoever waits, in order, and only when it is moved."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers.clock import FakeClock


async def test_wakes_in_the_order_of_times_then_of_coming() -> None:
    clock, woken = FakeClock(10.0), []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock()))

    async with asyncio.TaskGroup() as tasks:
        for name, seconds in (("late", 3.0), ("first", 1.0), ("second", 1.0), ("later", 9.0)):
            tasks.create_task(sleeper(name, seconds))
        await clock.sleepers(4)
        clock.advance(3.0)
        await clock.until(13.0)
        await asyncio.sleep(0)
        assert woken == [("first", 13.0), ("second", 13.0), ("late", 13.0)]
        clock.advance(6.0)
    assert [name for name, _ in woken] == ["first", "second", "late", "later"]
    assert clock.now() == 19.0


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(1.0))
    await clock.sleepers(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    clock.advance(2.0)
    with pytest.raises(TimeoutError):
        await clock.sleepers(1, timeout=0.01)


def test_never_goes_back() -> None:
    with pytest.raises(ValueError, match="does not go back"):
        FakeClock().advance(-1.0)
