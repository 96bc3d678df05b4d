"""A slow disk is not its caller's fault."""

from __future__ import annotations

import asyncio
from typing import Any

from env_worker.arrays.outflow import Outflow
from env_worker.arrays.places import Places


class BriskCaller:
    """Takes whatever is written at once."""

    def __init__(self) -> None:
        self.messages = 0

    async def write(self, message: bytes) -> None:
        """As a call's context."""
        await asyncio.sleep(0)
        self.messages += 1


class SlowPieces:
    """Ten pieces, of which the fourth comes when the disk has it."""

    def __init__(self, disk: asyncio.Event) -> None:
        self._disk = disk
        self._pieces = 0

    async def next(self) -> bytes | None:
        """As `Pieces`."""
        self._pieces += 1
        if self._pieces == 4:
            await self._disk.wait()
        return b"x" * 1000 if self._pieces <= 10 else None


async def test_a_brisk_caller_keeps_its_place_while_the_disk_is_slow() -> None:
    places, turns, disk = Places(1, patience_seconds=0.0), asyncio.Semaphore(2), asyncio.Event()

    async def fetch(caller: Any, pieces: Any) -> None:
        async with places.place() as place:
            await Outflow(caller, turns, place, 60.0).send(b"descriptor", pieces)

    first, second = BriskCaller(), BriskCaller()
    fetches = [asyncio.create_task(fetch(first, SlowPieces(disk)))]
    async with asyncio.timeout(20):
        while first.messages < 4:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        disk_is_there = asyncio.Event()
        disk_is_there.set()
        fetches.append(asyncio.create_task(fetch(second, SlowPieces(disk_is_there))))
        while not places.waiting:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0)
        places._reclaim()  # as once a second
        disk.set()
        await asyncio.gather(*fetches)
    assert (first.messages, second.messages) == (11, 11)
