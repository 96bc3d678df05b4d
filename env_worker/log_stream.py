"""Standard error for a process that must not wait for whoever reads it."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections import deque
from typing import Final, Self

LIMIT_BYTES: Final = 4 * 1024 * 1024
"""Most bytes that wait to be read. What comes beyond them is dropped, and counted."""
FLUSH_SECONDS: Final = 2.0
"""How long the end of the process waits for a reader."""

_PIECE_BYTES: Final = 64 * 1024


class LogStream:
    """A text stream whose writers never wait, nor hear that it broke; may be used in any thread.

    What can be written at once is: nothing is lost with a process that dies in the next moment. Else it
    waits, within a limit, for a thread that writes it when somebody reads.

    Args:
        fd: where to. It stays open.
        limit: bytes that may wait.
    """

    def __init__(self, fd: int, *, limit: int = LIMIT_BYTES) -> None:
        self._fd: Final = fd
        self._limit: Final = limit
        self._pid: Final = os.getpid()
        self._poll: Final = select.poll()
        if fd >= 0:
            self._poll.register(fd, select.POLLOUT)
        self._changed: Final = threading.Condition()  # reentrant, as a signal's handler may log too
        self._waiting: Final[deque[bytes]] = deque()
        self._bytes = 0
        """Waiting or being written."""
        self._dropped = 0
        self._closed = False
        self._thread: Final = threading.Thread(target=self._run, name="log stream", daemon=True)
        self._thread.start()

    @classmethod
    def of_stderr(cls) -> Self:
        """Of this process's standard error, by a descriptor of its own; to nowhere if that is closed."""
        fd = -1
        if sys.stderr is not None:  # else 2 is whatever was opened next
            with contextlib.suppress(OSError):
                fd = os.dup(2)
        return cls(fd)

    def write(self, text: str) -> int:
        """Write whole lines, now or later. Returns how many characters that were."""
        data = text.encode(errors="backslashreplace")
        if os.getpid() != self._pid:  # a child that was forked has no such thread
            self._put(data)
            return len(text)
        with self._changed:
            if self._closed:
                return len(text)
            if not (self._bytes or self._dropped) and len(data) <= select.PIPE_BUF and self._poll.poll(0):
                self._put(data)
            elif self._bytes + len(data) > (self._limit // 2 if self._dropped else self._limit):
                self._dropped += text.count("\n")
            else:
                self._note_dropped()
                self._queue(data)
        return len(text)

    def flush(self) -> None:
        """As streams have it. Waits for nobody."""

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._fd >= 0 and os.isatty(self._fd)

    def fileno(self) -> int:
        """Its descriptor."""
        return self._fd

    def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Wait so long for what waits to be written, and take no more. Nothing in a child that was forked."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._note_dropped()
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)

    def _note_dropped(self) -> None:
        if self._dropped:
            said = f"{self._dropped} lines of the log were dropped, as nobody read it"
            self._dropped = 0
            self._queue(f"{said}\n".encode())

    def _queue(self, data: bytes) -> None:
        self._waiting.append(data)
        self._bytes += len(data)
        self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._closed):
                    self._changed.wait()
                if not self._waiting:
                    return
                data = self._waiting.popleft()
                while self._waiting and len(data) + len(self._waiting[0]) <= _PIECE_BYTES:
                    data += self._waiting.popleft()
            self._put(data)
            with self._changed:
                self._bytes -= len(data)
                if not self._waiting:
                    self._note_dropped()

    def _put(self, data: bytes) -> None:
        """Write it, however long that takes. What broke is not heard of: nobody is left to tell."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # somebody made it so
                self._poll.poll(1_000)
            except OSError:
                return
