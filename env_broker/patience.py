"""How long something may last, counting only the time that it is to blame for."""

from __future__ import annotations

from typing import Final

_MOST_AT_ONCE: Final = 1.0


class Patience:
    """Seconds that are used up while they count.

    Of the time between two looks at most one second counts: if more has passed, it was this process that
    stood still.

    Args:
        seconds: how many there are.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds: Final = seconds
        self._left = seconds
        self._looked: float | None = None

    @property
    def left(self) -> float:
        """How many are left; less than none where they were used up long ago."""
        return self._left

    def renew(self, now: float) -> None:
        """All seconds are there again."""
        self._left, self._looked = self._seconds, now

    def over(self, now: float, *, counts: bool) -> bool:
        """Whether they are used up; `counts`: what has passed since the last look does."""
        passed = 0.0 if self._looked is None else min(now - self._looked, _MOST_AT_ONCE)
        self._looked = now
        if counts:
            self._left -= passed
        return self._left <= 0
