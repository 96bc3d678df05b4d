"""The sequencer forces its order on tasks and threads, and fails where the order cannot come about."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers.sequencer import SequenceError, Sequencer


async def test_forces_the_order_on_tasks_and_threads() -> None:
    sequence, order = Sequencer("a", "b", "c"), []

    async def task(step: str) -> None:
        async with sequence.turn(step):
            order.append(step)

    def thread() -> None:
        sequence.block("b")
        order.append("b")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(task("a"))
        tasks.create_task(asyncio.to_thread(thread))
        await asyncio.sleep(0)
        await sequence("c")
    sequence.check_done()
    assert order == ["a", "b"]


async def test_a_step_that_does_not_come_fails_instead_of_hanging() -> None:
    sequence = Sequencer("a", "b", timeout=0.01)
    with pytest.raises(SequenceError, match=r"'b' waited 0.01 s for 'a'"):
        await sequence("b")
    with pytest.raises(SequenceError, match="never came"):
        sequence.check_done()
    with pytest.raises(SequenceError, match=r"'b' waited 0.01 s for 'a'"):
        await asyncio.to_thread(Sequencer("a", "b", timeout=0.01).block, "b")


async def test_unknown_repeated_and_ambiguous_steps() -> None:
    sequence = Sequencer("a")
    with pytest.raises(SequenceError, match="not one of"):
        await sequence("x")
    await sequence("a")
    with pytest.raises(SequenceError, match="came twice"):
        await sequence("a")
    with pytest.raises(SequenceError, match="not unique"):
        Sequencer("a", "a")


async def test_a_cancelled_waiter_leaves_the_order_alone() -> None:
    sequence = Sequencer("a", "b", timeout=0.2)
    waiter = asyncio.create_task(sequence("b"))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    await sequence("a")
