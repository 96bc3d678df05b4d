"""Room for the arrays of a run that was admitted."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


class Reservation:
    """Holds room until it is closed: when the run's keep has ended, or there will be none. Thread-safe."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back: Final = give_back
        self._lock: Final = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Give the room back. Again: changes nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._give_back()
