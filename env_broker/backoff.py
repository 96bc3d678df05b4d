"""How long to wait before a process is started again."""

from __future__ import annotations

from typing import Final

STEADY_SECONDS: Final = 60.0
"""A process that lived this long is restarted at once."""

_FIRST_DELAY_SECONDS: Final = 0.5
_LAST_DELAY_SECONDS: Final = 15.0


def restart_delay(failures: int) -> float:
    """Seconds before the restart after so many exits in a row: at once, then 0.5 s doubling to 15 s."""
    if failures <= 1:
        return 0.0
    return min(_FIRST_DELAY_SECONDS * 2.0 ** min(failures - 2, 16), _LAST_DELAY_SECONDS)
