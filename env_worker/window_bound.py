"""When a window that is over may close. Synchronous: `now` is monotonic seconds."""

from __future__ import annotations

from typing import Final

from env_worker.stall import Stall

MAX_WINDOWS: Final = 10
"""A brokered run's window waits for an acknowledged heartbeat, but not longer than so many windows."""
REGISTRATION_SECONDS: Final = 10.0
"""After a registration the broker does not know yet what it missed: a client repeats a cancel that found no
broker after at most 5 s, and a session that does not come back is lost after its grace of 3 s. Heartbeats of
these seconds therefore say nothing about windows."""
STALL_HEAR_SECONDS: Final = 1.0
"""Longer than sessions are put off, so that a lost one takes its replies back before their windows close."""


class WindowBound:
    """Holds windows open for cancels that are still under way.

    Args:
        brokered: cancels come through a broker. Otherwise only a stall of this process holds them up.
        window_seconds: the window.
    """

    def __init__(self, *, brokered: bool, window_seconds: float) -> None:
        self._brokered: Final = brokered
        self._patience: Final = (MAX_WINDOWS - 1) * window_seconds
        self._acknowledged = float("-inf")
        self._telling_from = float("-inf")
        self._stall: Final = Stall(STALL_HEAR_SECONDS)

    def registered(self, now: float) -> None:
        """A lease begins."""
        self._telling_from = now + REGISTRATION_SECONDS

    def heartbeat_acknowledged(self, sent_at: float) -> None:
        """The broker has answered the heartbeat of `sent_at`."""
        if sent_at >= self._telling_from:
            self._acknowledged = max(self._acknowledged, sent_at)

    def closable(self, next_expiry: float | None, now: float) -> float:
        """Windows that were over at that moment may close now."""
        if self._brokered:
            return max(self._acknowledged, now - self._patience)
        return float("-inf") if self._stall.holds(next_expiry, now) else now

    def next_look(self, next_expiry: float) -> float:
        """When `closable` reaches `next_expiry` at the latest."""
        return next_expiry + self._patience if self._brokered else self._stall.next_look(next_expiry)
