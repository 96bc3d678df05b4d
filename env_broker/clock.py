"""Time as an input, so that tests decide about it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

ResultT = TypeVar("ResultT")


class Clock(Protocol):
    """Monotonic time in seconds."""

    def now(self) -> float:
        """Seconds since an arbitrary moment; never runs backwards."""

    async def sleep(self, seconds: float) -> None:
        """Return once that much time has passed."""


class MonotonicClock:
    """The real one."""

    def now(self) -> float:
        """As in Clock."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """As in Clock."""
        await asyncio.sleep(seconds)


async def within(clock: Clock, seconds: float, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The result of `work`, which is cancelled and awaited if it is not there in time.

    Raises:
        TimeoutError: `seconds` have passed.
    """
    task = asyncio.create_task(work)
    timer = asyncio.create_task(clock.sleep(seconds))
    try:
        await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise TimeoutError(f"not done within {seconds:g} s")
        return task.result()
    finally:
        timer.cancel()
        task.cancel()
        await asyncio.gather(task, timer, return_exceptions=True)
