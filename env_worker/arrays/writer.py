"""Writes a segment's bytes into its file."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    Put: TypeAlias = Callable[[int, memoryview], object]
    """Takes an offset in the segment, and the bytes that belong there, which stay as they are until all of
    the segment was put."""

_GATHERED_BYTES: Final = 2**22
_GATHERED_PIECES: Final = 512
"""POSIX systems take 1,024 at once; more of them would be no cheaper."""


class SegmentWriter:
    """Pieces go into the file `fd` at their offsets, and are there after `flush`. Until then they must not
    change.

    What lies side by side is written at once, up to 4 MiB or one piece: whenever the interpreter is released
    for a system call, other threads wake up for it, which costs more than the call does.

    By pwrite and not through a mapping: a file in memory gets huge pages without being asked to (where the
    host gives them), memory or a disk that is full is an OSError and not a SIGBUS, and nothing has to be
    unmapped before the file can be sealed.

    Args:
        size: of the file in bytes, which no piece may exceed.
    """

    def __init__(self, fd: int, size: int) -> None:
        self._fd: Final = fd
        self._size: Final = size
        self._gathered: Final[list[memoryview]] = []
        self._begin = 0
        self._end = 0
        """Where what was gathered begins and ends."""

    def put(self, offset: int, piece: memoryview) -> None:
        """Write `piece`, or gather it. OSError; ValueError if it does not lie in the file."""
        end = offset + len(piece)
        if not 0 <= offset <= end <= self._size:
            raise ValueError(f"{len(piece)} bytes at {offset} are not in a segment of {self._size} bytes")
        full = end - self._begin > _GATHERED_BYTES or len(self._gathered) >= _GATHERED_PIECES
        if full or offset != self._end:
            self.flush()
            self._begin = offset
        self._gathered.append(piece)
        self._end = end

    def flush(self) -> None:
        """Write what was gathered. OSError."""
        if self._gathered:
            _write(self._fd, self._begin, self._gathered)
            self._gathered.clear()


def _write(fd: int, offset: int, pieces: list[memoryview]) -> None:
    missing = sum(map(len, pieces))
    done = 0
    while missing:
        if done:
            pieces = _without(pieces, done)
        done = os.pwritev(fd, pieces, offset)
        if not done:
            raise OSError(errno.EIO, f"of {missing} bytes none could be written")
        offset += done
        missing -= done


def _without(pieces: list[memoryview], count: int) -> list[memoryview]:
    """What follows the first `count` bytes."""
    for index, piece in enumerate(pieces):
        if count < len(piece):
            return [piece[count:], *pieces[index + 1 :]]
        count -= len(piece)
    return []
