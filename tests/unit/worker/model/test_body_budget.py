"""Large bodies share a budget: they wait for each other, but never for ever."""

from __future__ import annotations

import asyncio
import random

import pytest

from env_worker.model.body_budget import FREE_BYTES, BodyBudget, Share

UNIT = FREE_BYTES


def growing(share: Share, units: int) -> asyncio.Task[None]:
    return asyncio.create_task(share.grow(units * UNIT))


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_small_bodies_take_nothing() -> None:
    budget = BodyBudget(0)
    for _ in range(100):
        await budget.share().grow(FREE_BYTES)
    assert budget.used == 0


async def test_a_body_waits_until_there_is_room() -> None:
    budget = BodyBudget(4 * UNIT)
    first, second = budget.share(), budget.share()
    await first.grow(3 * UNIT)
    waits = growing(second, 2)
    await settle()
    assert not waits.done()
    assert not second.has(2 * UNIT)
    first.give_back()
    await waits
    assert second.has(2 * UNIT)
    assert budget.used == 2 * UNIT
    second.give_back()
    second.give_back()
    assert budget.used == 0


async def test_one_that_is_larger_than_all_goes_alone() -> None:
    budget = BodyBudget(2 * UNIT)
    large, other = budget.share(), budget.share()
    await large.grow(10 * UNIT)
    waits = growing(other, 2)
    await settle()
    assert not waits.done()
    large.give_back()
    await waits


async def test_where_all_wait_the_oldest_goes_on_and_no_other() -> None:
    budget = BodyBudget(4 * UNIT)
    shares = [budget.share() for _ in range(3)]
    await shares[1].grow(2 * UNIT)
    await shares[2].grow(2 * UNIT)
    third = growing(shares[2], 4)
    await settle()
    assert not third.done()
    second = growing(shares[1], 4)
    await second
    await shares[1].grow(4 * UNIT)
    first = growing(shares[0], 2)
    await settle()
    assert not first.done()
    assert not third.done()
    shares[1].give_back()
    await first
    shares[0].give_back()
    await third


async def test_who_is_cancelled_leaves_nothing_behind() -> None:
    budget = BodyBudget(4 * UNIT)
    holds, waits, next_one = (budget.share() for _ in range(3))
    await holds.grow(4 * UNIT)
    for granted in (False, True):
        task = growing(waits, 2)
        await settle()
        if granted:  # in the very turn of the loop in which it is cancelled
            holds.give_back()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        waits.give_back()
    assert budget.used == 0
    await next_one.grow(4 * UNIT)


async def test_all_are_served_in_the_end() -> None:
    chance = random.Random(7)
    total, largest = 8 * UNIT, 6
    budget = BodyBudget(total)
    most = 0

    async def body() -> None:
        nonlocal most
        share = budget.share()
        try:
            for units in range(1, chance.randint(2, largest) + 1):
                await share.grow(units * UNIT)
                most = max(most, budget.used)
                await asyncio.sleep(0)
        finally:
            share.give_back()

    tasks = [asyncio.create_task(body()) for _ in range(200)]
    for task in chance.sample(tasks, 40):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait(tasks, timeout=20)
    assert all(task.done() for task in tasks)
    assert budget.used == 0
    assert most <= total + largest * UNIT
