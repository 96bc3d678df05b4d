"""What one task waits for."""

from __future__ import annotations

import asyncio

import pytest

from env_worker.bell import Bell


async def test_it_is_heard_once_it_was_rung_before_or_while_waited_for() -> None:
    bell = Bell()
    bell.ring()
    await bell.heard()
    bell.rung = False
    waits = asyncio.create_task(bell.heard())
    await asyncio.sleep(0)
    assert not waits.done()
    bell.ring()
    bell.ring()
    await waits
    assert bell.rung


async def test_a_wait_that_was_cancelled_leaves_room_for_the_next_one() -> None:
    bell = Bell()
    first = asyncio.create_task(bell.heard())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="another task waits"):
        await bell.heard()
    first.cancel()
    bell.ring()
    with pytest.raises(asyncio.CancelledError):
        await first
    bell.rung = False
    second = asyncio.create_task(bell.heard())
    await asyncio.sleep(0)
    bell.ring()
    await second
