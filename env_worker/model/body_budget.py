"""How many bytes of large responses a worker has in memory at once."""

from __future__ import annotations

import asyncio
from typing import Final

FREE_BYTES: Final = 1 << 20
"""What each body has without asking: most are no larger, and none of them waits for another."""


class BodyBudget:
    """Bytes that the bodies of one event loop share. Used in that loop only.

    A body that needs more waits until others are done, the oldest first. Where all wait for each other, the
    oldest is let go on beyond the total, and no other before it is done: so none waits for ever, and there
    are never more bytes than the total and one body's limit.

    Args:
        total: bytes of all bodies, without those that are free for each.
    """

    def __init__(self, total: int) -> None:
        self._total: Final = total
        self._used = 0
        self._active = 0
        """Shares that have bytes, and do not wait for more."""
        self._shares = 0
        self._waiting: Final[list[tuple[Share, int, asyncio.Future[None]]]] = []

    @property
    def used(self) -> int:
        """Bytes that are given away."""
        return self._used

    def share(self) -> Share:
        """For one body, of which nothing is there yet."""
        self._shares += 1
        return Share(self, self._shares)

    async def _take(self, share: Share, more: int) -> None:
        if share.held:
            self._active -= 1
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (share, more, granted)
        self._waiting.append(entry)
        self._serve()
        try:
            await granted
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._active += bool(share.held)
            raise  # whoever has the share gives back what it holds

    def _give_back(self, share: Share) -> None:
        if share.held:
            self._used -= share.held
            self._active -= 1
            share.held = 0
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            entry = min(self._waiting, key=lambda waiting: waiting[0].number)
            share, more, granted = entry
            if self._active and self._used + more > self._total:
                return
            self._waiting.remove(entry)
            share.held += more
            self._used += more
            self._active += 1
            if not granted.done():  # cancelled, and its task does not know yet
                granted.set_result(None)


class Share:
    """The bytes that one body has of a budget."""

    def __init__(self, budget: BodyBudget, number: int) -> None:
        self._budget: Final = budget
        self.number: Final = number
        self.held = 0

    def has(self, size: int) -> bool:
        """Whether a body of `size` bytes may be there already."""
        return size <= max(self.held, FREE_BYTES)

    async def grow(self, size: int) -> None:
        """Return when a body of `size` bytes may be there."""
        if not self.has(size):
            await self._budget._take(self, size - self.held)

    def give_back(self) -> None:
        """Of a body that is gone. It may be called again."""
        self._budget._give_back(self)
