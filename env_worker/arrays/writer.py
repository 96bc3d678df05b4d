"""Writes a segment's bytes into its file."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    Put: TypeAlias = Callable[[int, memoryview], object]
    """Takes an offset in the segment, and the bytes that belong there; they are not needed afterwards."""

_LARGE_BYTES: Final = 2**16
"""Pieces from here on are written from where they are; smaller ones are gathered, as long as each begins
where the last one ended."""


class SegmentWriter:
    """Pieces go into the file `fd` at their offsets, and are there after `flush`.

    By pwrite and not through a mapping: a file in memory gets huge pages without being asked to (where the
    host gives them), memory or a disk that is full is an OSError and not a SIGBUS, and nothing has to be
    unmapped before the file can be sealed.

    Args:
        size: of the file in bytes, which no piece may exceed.
    """

    def __init__(self, fd: int, size: int) -> None:
        self._fd: Final = fd
        self._size: Final = size
        self._gathered: Final = bytearray()
        self._end = 0
        """Where what was gathered ends."""

    def put(self, offset: int, piece: memoryview) -> None:
        """Write `piece`, or gather it. OSError; ValueError if it does not lie in the file."""
        end = offset + len(piece)
        if not 0 <= offset <= end <= self._size:
            raise ValueError(f"{len(piece)} bytes at {offset} are not in a segment of {self._size} bytes")
        if offset != self._end or len(self._gathered) + len(piece) > _LARGE_BYTES:
            self.flush()
        if len(piece) >= _LARGE_BYTES:
            _write(self._fd, offset, piece)
        else:
            self._gathered.extend(piece)
        self._end = end

    def flush(self) -> None:
        """Write what was gathered. OSError."""
        if self._gathered:
            with memoryview(self._gathered) as piece:
                _write(self._fd, self._end - len(piece), piece)
            self._gathered.clear()


def _write(fd: int, offset: int, piece: memoryview) -> None:
    written = 0
    while written < len(piece):
        with piece[written:] as rest:
            done = os.pwrite(fd, rest, offset + written)
        if not done:
            raise OSError(errno.EIO, f"of {len(piece) - written} bytes none could be written")
        written += done
