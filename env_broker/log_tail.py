"""The last lines of a process."""

from __future__ import annotations

from collections import deque
from typing import Final

MAX_LINE_BYTES: Final = 8 * 1024


class LogTail:
    """Splits a process's output into lines and remembers the last of them.

    Args:
        lines: how many.
    """

    def __init__(self, lines: int = 50) -> None:
        self._lines: Final[deque[str]] = deque(maxlen=lines)
        self._partial = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that these bytes complete. Lines over MAX_LINE_BYTES are broken up."""
        *whole, self._partial = (self._partial + data).split(b"\n")
        while len(self._partial) > MAX_LINE_BYTES:
            whole.append(self._partial[:MAX_LINE_BYTES])
            self._partial = self._partial[MAX_LINE_BYTES:]
        return self._remember(whole)

    def finish(self) -> list[str]:
        """The output is over: the last line, if it was not ended."""
        rest, self._partial = self._partial, b""
        return self._remember([rest] if rest else [])

    def last(self, lines: int) -> list[str]:
        """The last lines, oldest first."""
        return list(self._lines)[-lines:]

    def _remember(self, raw: list[bytes]) -> list[str]:
        lines = [line.decode(errors="replace").rstrip("\r") for line in raw]
        self._lines.extend(lines)
        return lines
