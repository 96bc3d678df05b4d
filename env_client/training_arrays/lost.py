"""Workers that could not be reached, so that not each of their arrays costs the whole wait again."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_REMEMBERED_SECONDS: Final = 60.0
_MAX_REMEMBERED: Final = 10_000

QUICK_SECONDS: Final = 2.0
"""How long the one try may take that is made with one that is remembered."""


class LostWorkers:
    """Instances that could not be reached lately, each by its address. Thread-safe.

    Instances and not addresses alone: where one is gone, another may come.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Held for moments only, as each try of a call asks.
        self._lock = threading.Lock()
        self._since: dict[tuple[str, str], float] = {}

    def add(self, address: str, instance: str) -> None:
        """It could not be reached: for a while, or until it answers, one try must do."""
        with self._lock:
            self._since.pop((address, instance), None)
            while len(self._since) >= _MAX_REMEMBERED:
                del self._since[next(iter(self._since))]  # The oldest.
            self._since[address, instance] = self._clock()

    def found(self, address: str, instance: str) -> None:
        """It has answered."""
        with self._lock:
            self._since.pop((address, instance), None)

    def has(self, address: str, instance: str) -> bool:
        """Whether it could not be reached lately."""
        with self._lock:
            since = self._since.get((address, instance))
        return since is not None and self._clock() - since < _REMEMBERED_SECONDS
