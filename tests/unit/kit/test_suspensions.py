"""Suspensions: each suspension is disturbed once, in its turn, and none is missed."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers.suspensions import Moment, Suspensions, outcome_of


async def work(log: list[str]) -> int:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0)
    future: asyncio.Future[int] = loop.create_future()
    loop.call_soon(lambda: None if future.cancelled() else future.set_result(3))
    log.append("asked")
    value = await future
    log.append("answered")
    try:
        await asyncio.sleep(0)
    finally:
        await asyncio.sleep(0)  # Also reached by the cancel of the one before.
    return value


@pytest.mark.parametrize("moment", Moment)
async def test_each_suspension_is_cancelled_once(moment: Moment) -> None:
    outcomes, logs, places = [], [], []
    for point in Suspensions(asyncio.Task.cancel, moment):
        logs.append(log := list[str]())
        outcomes.append(await outcome_of(point.drive(work(log))))
        places.append(point.where)
    assert [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes] == [True] * 4 + [False]
    assert outcomes[-1] == 3
    assert logs == [[], ["asked"], *[["asked", "answered"]] * 3]
    assert places[1].startswith("work:")


async def test_awakened_means_that_the_result_is_there() -> None:
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[int]] = []
    seen: dict[Moment, list[bool]] = {moment: [] for moment in Moment}

    async def one() -> int:
        futures.append(loop.create_future())
        loop.call_soon(futures[-1].set_result, 3)
        return await futures[-1]

    for moment in Moment:
        note = seen[moment].append
        for point in Suspensions(lambda _, note=note: note(futures[-1].done()), moment):  # type: ignore[misc]
            assert await outcome_of(point.drive(one())) == 3
    assert seen == {Moment.ASLEEP: [False], Moment.AWAKENED: [True]}


async def test_the_exceptions_that_a_run_meets_are_its_own() -> None:
    async def raises() -> None:
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            raise KeyError("its own") from None

    for point in Suspensions(lambda _: None):
        assert isinstance(await outcome_of(point.drive(raises())), KeyError)


async def test_no_place_is_missed_where_the_number_of_suspensions_differs() -> None:
    quick = iter([False, True, True, True])

    async def first() -> None:
        await asyncio.sleep(0)

    async def last() -> None:
        await asyncio.sleep(0)

    async def hasty() -> None:
        if not next(quick):
            await first()
        await last()

    passes: list[list[bool]] = []
    for point in Suspensions(asyncio.Task.cancel):
        await outcome_of(point.drive(hasty()))
        passes.append(["first" in point.where, "last" in point.where])
    # By number alone it would be over after the second pass, and `last` never cancelled.
    assert passes == [[True, False], [False, False], [False, True], [False, False]]


async def test_a_pass_without_a_coroutine_is_a_fault() -> None:
    with pytest.raises(AssertionError, match="nothing was driven"):
        for _ in Suspensions(asyncio.Task.cancel):
            pass


async def test_what_never_ends_is_said() -> None:
    for point in Suspensions(lambda _: None):
        with pytest.raises(AssertionError, match="not done after"):
            await outcome_of(point.drive(asyncio.Event().wait()), timeout=0.0)
        break
