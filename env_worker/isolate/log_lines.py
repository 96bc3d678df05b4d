"""What an environment's process prints, in the worker's log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections import deque
from typing import Final

logger = logging.getLogger(__name__)

MAX_LINES: Final = 1000
"""Lines of one run that are logged; the last TAIL_LINES are known all the same."""
MAX_LINE_BYTES: Final = 2000
TAIL_LINES: Final = 25
_LEVEL: Final = re.compile("level=([A-Z]+) ")  # as `child` sets up its logging
_READ_BYTES: Final = 64 * 1024


class LogLines:
    """Logs each line that comes out of the pipe `fd`, and closes it at its end. For one event loop."""

    def __init__(self, fd: int, name: str) -> None:
        self.name = name
        """What the lines are of: a run's first 8 digits."""
        self.tail: Final[deque[str]] = deque(maxlen=TAIL_LINES)
        self._fd: Final = fd
        self._loop: Final = asyncio.get_running_loop()
        self._rest = b""
        self._cutting = False  # within a line that was too long, and has been logged
        self._lines = 0
        self._ended: Final = asyncio.Event()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    async def close(self, seconds: float) -> None:
        """Wait so long for the pipe's end, then stop reading."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        self.stop()

    def stop(self) -> None:
        """Stop reading, and close the pipe. Again: changes nothing."""
        if not self._ended.is_set():
            self._ended.set()
            if self._rest and not self._cutting:
                self._log(self._rest)
            self._loop.remove_reader(self._fd)
            os.close(self._fd)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.stop()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not self._cutting:
                self._log(line)
            self._cutting = False
        if len(self._rest) > MAX_LINE_BYTES:
            if not self._cutting:
                self._log(self._rest)
            self._rest, self._cutting = b"", True

    def _log(self, line: bytes) -> None:
        text = line[:MAX_LINE_BYTES].decode(errors="replace").rstrip()
        text = "".join(character if character.isprintable() else " " for character in text)
        if len(line) > MAX_LINE_BYTES:
            text += "..."
        self.tail.append(text)
        self._lines += 1
        if self._lines <= MAX_LINES:
            match = _LEVEL.match(text)
            level = logging.getLevelNamesMapping().get(match[1], logging.INFO) if match else logging.INFO
            logger.log(level, "run=%s %s", self.name, text)
        elif self._lines == MAX_LINES + 1:
            logger.warning("run=%s printed %d lines; what follows is not logged", self.name, MAX_LINES)
