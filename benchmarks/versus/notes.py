"""What environments note for their driver: when a run began, ended, or was aborted.

All processes of a machine read the same `time.monotonic()`.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

VARIABLE: Final = "ENVTRIO_VERSUS_NOTES"
"""The file; where it is not set, nothing is noted."""
BEGAN: Final = "began"
ENDED: Final = "ended"
ABORTED: Final = "aborted"

_LOOK_SECONDS: Final = 0.05


class Notebook:
    """An environment's end of it."""

    def __init__(self) -> None:
        path = os.environ.get(VARIABLE)
        # Appended to by one write a note, so several workers may have the same file.
        self._fd = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, word: str, number: int) -> None:
        """That it happened to that run, now."""
        if self._fd is not None:
            os.write(self._fd, f"{word} {number} {time.monotonic():.6f}\n".encode())


@dataclass
class Notes:
    """A driver's end of it: moments of `time.monotonic()` by the word, by the run's number."""

    path: Path
    moments: dict[str, dict[int, float]] = field(
        default_factory=lambda: {word: {} for word in (BEGAN, ENDED, ABORTED)}
    )
    _read: int = 0

    def read(self) -> None:
        """What came since."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            whole, _, _ = file.read().rpartition(b"\n")
        if whole:
            self._read += len(whole) + 1
            for line in whole.decode().splitlines():
                word, number, moment = line.split()
                self.moments[word][int(number)] = float(moment)

    async def settled(self, numbers: Collection[int], seconds: float) -> set[int]:
        """Wait until each of those runs that began is over; those that were not within `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            self.read()
            over = self.moments[ENDED].keys() | self.moments[ABORTED].keys()
            left = (self.moments[BEGAN].keys() & set(numbers)) - over
            if not left or time.monotonic() > deadline:
                return left
            await asyncio.sleep(_LOOK_SECONDS)
