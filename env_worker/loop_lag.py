"""How late the event loop is."""

from __future__ import annotations

import asyncio
from typing import Final

PROBE_SECONDS: Final = 0.1


class LoopLag:
    """Asks the running loop every tenth of a second to be on time, and remembers how late it was at most."""

    def __init__(self) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._largest = 0.0
        self._timer = self._probe_later()

    def take_millis(self) -> float:
        """The largest lag since this was last asked, in milliseconds."""
        largest, self._largest = self._largest, 0.0
        return largest * 1000

    def close(self) -> None:
        """Stop probing."""
        self._timer.cancel()

    def _probe_later(self) -> asyncio.TimerHandle:
        return self._loop.call_later(PROBE_SECONDS, self._probe, self._loop.time() + PROBE_SECONDS)

    def _probe(self, due: float) -> None:
        self._largest = max(self._largest, self._loop.time() - due)
        self._timer = self._probe_later()
