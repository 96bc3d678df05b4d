"""A caller that does not read, once its run has ended."""

from __future__ import annotations

import asyncio
from typing import Final

UNREAD_SECONDS: Final = 5.0
"""How long a caller has, after its run was ended, to read what is on its way to it."""


class UnreadLimit:
    """Breaks off a handler's write that its caller may never let through. Made in the handler's task."""

    def __init__(self) -> None:
        self._handler = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self._interrupted = False

    def begin(self) -> None:
        """The run has ended: UNREAD_SECONDS are left."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(UNREAD_SECONDS, self._interrupt)

    def cancelled(self) -> bool:
        """Whether somebody else wants the handler to end.

        Ask when CancelledError came. Where it was the limit that broke off a write, that is over with this.
        """
        assert self._handler is not None
        if self._interrupted:
            self._interrupted = False
            self._handler.uncancel()
        return self._handler.cancelling() > 0

    def close(self) -> None:
        """The handler has heard of the end."""
        if self._timer is not None:
            self._timer.cancel()
        self._handler = None  # its frames lead here, and to all that the run was

    def _interrupt(self) -> None:
        if self._handler is not None:
            self._interrupted = self._handler.cancel()
