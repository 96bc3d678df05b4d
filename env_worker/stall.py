"""A process that stood still (stopped, or its interpreter held) hears first what came meanwhile."""

from __future__ import annotations

from typing import Final

STALL_SECONDS: Final = 0.5
"""A timer that is later than this is late because the process stood still."""


class Stall:
    """Puts off, once, what is due and could not be looked at in time.

    When a process goes on, its timers are ready before what lies in its sockets is read: a session whose
    client came back in time would be lost, a window whose cancel came in time would close.

    Args:
        hear_seconds: how long what was due waits after a stall, so that it is all read.
    """

    def __init__(self, hear_seconds: float = STALL_SECONDS) -> None:
        self._hear_seconds: Final = hear_seconds
        self._until = float("-inf")

    def holds(self, due: float | None, now: float) -> bool:
        """Whether what was due at `due` must wait now. What a stall has put off once is not put off again,
        so that a process which is always late still ends what is over."""
        if due is not None and now > due + STALL_SECONDS and due > self._until:
            self._until = now + self._hear_seconds
        return now < self._until

    def next_look(self, due: float) -> float:
        """When to look at what is due at `due`."""
        return max(due, self._until)
