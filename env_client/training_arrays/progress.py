"""Tells a caller how far its fetches have come: not too often, and never backwards."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    OnProgress: TypeAlias = Callable[[int, int], object]
    """Gets the bytes that have come, and those that will have come at the end."""

PROGRESS_SECONDS: Final = 0.05


class Progress:
    """The progress of some fetches together. Thread-safe: `on_progress` is called by one thread at a time.

    It is called with the first bytes, then at most every 50 ms, and when all has come.

    Args:
        on_progress: None: nobody wants to know.
        clock: monotonic seconds.
    """

    def __init__(self, on_progress: OnProgress | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._on_progress = on_progress
        self._clock = clock
        self._lock = threading.Lock()
        self._total_bytes = 0
        self._done_bytes = 0
        self._told_bytes = -1
        self._told_at = clock()

    def part(self, expected_bytes: int) -> ProgressPart:
        """The progress of one of the fetches. Make all parts before the first begins."""
        self._total_bytes += expected_bytes
        return ProgressPart(self, expected_bytes)

    def advance(self, bytes_more: int, total_more: int) -> None:
        """So much more has come; the total is larger than was thought, or smaller."""
        if self._on_progress is None:
            return
        with self._lock:
            self._done_bytes += bytes_more
            self._total_bytes += total_more
            now = self._clock()
            is_due = self._told_bytes < 0 or now - self._told_at >= PROGRESS_SECONDS
            is_last = self._done_bytes == self._total_bytes
            if self._told_bytes < self._done_bytes and (is_last or is_due):
                self._told_bytes, self._told_at = self._done_bytes, now
                self._on_progress(self._done_bytes, self._total_bytes)


class ProgressPart:
    """How far one fetch has come; one that begins again counts from where it was before."""

    def __init__(self, whole: Progress, expected_bytes: int) -> None:
        self._whole = whole
        self._expected_bytes = expected_bytes
        self._furthest = 0

    def reached(self, done_bytes: int, total_bytes: int) -> None:
        """So much of it has come, of so much in all."""
        more = max(0, done_bytes - self._furthest)
        self._furthest += more
        self._whole.advance(more, total_bytes - self._expected_bytes)
        self._expected_bytes = total_bytes
