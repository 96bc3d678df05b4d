"""A clock that moves only when a test moves it."""

from __future__ import annotations

import asyncio
import itertools


class FakeClock:
    """Seconds that stand still. Call it, or `now()`, to read it; it fits where `time.monotonic` does."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._order = itertools.count()
        self._sleepers: dict[asyncio.Future[None], tuple[float, int]] = {}
        self._arrived = asyncio.Condition()

    def __call__(self) -> float:
        return self._now

    def now(self) -> float:
        """The present in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move on. Wakes whoever's time has come, in the order of their times, then of their coming.

        ValueError if `seconds` is negative: a monotonic clock never goes back.
        """
        if seconds < 0:
            raise ValueError(f"advance({seconds}): a monotonic clock does not go back; give 0 or more")
        self._now += seconds
        due = sorted((at, sleeper) for sleeper, at in self._sleepers.items() if at[0] <= self._now)
        for _, sleeper in due:
            if not sleeper.done():
                sleeper.set_result(None)

    async def until(self, moment: float) -> None:
        """Wait until the clock reads `moment` or more."""
        if moment <= self._now:
            return
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers[sleeper] = (moment, next(self._order))
        try:
            async with self._arrived:
                self._arrived.notify_all()
            await sleeper
        finally:
            del self._sleepers[sleeper]

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has moved on by `seconds`."""
        await self.until(self._now + seconds)

    async def sleepers(self, count: int, *, timeout: float = 5.0) -> None:
        """Wait until at least `count` tasks wait on this clock, so that an `advance` finds them.

        TimeoutError if they do not come in `timeout` real seconds.
        """
        async with asyncio.timeout(timeout), self._arrived:
            await self._arrived.wait_for(lambda: len(self._sleepers) >= count)
