"""What one task waits for."""

from __future__ import annotations

import asyncio


class Bell:
    """An event that one task at a time waits for, in one event loop. A run has several, so it is small: what
    an asyncio.Event needs to have many waiters takes ten times the room.
    """

    __slots__ = ("_waiter", "rung")

    def __init__(self) -> None:
        self.rung = False
        """Whether it was rung. Who waits again and again sets it back."""
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake who waits, or does so next. Again: changes nothing."""
        self.rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def heard(self) -> None:
        """Returns once it was rung. RuntimeError where another task waits already."""
        if self.rung:
            return
        if self._waiter is not None:
            raise RuntimeError("another task waits for this bell; give each task a bell of its own")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
