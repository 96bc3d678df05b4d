"""Writes a segment's bytes into its file."""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    Put: TypeAlias = Callable[[int, memoryview], object]
    """Takes an offset in the segment, and the bytes that belong there, which stay as they are until all of
    the segment was put. Offsets only grow; what nothing is put to is zero."""

_GATHERED_BYTES: Final = 2**22
_GATHERED_PIECES: Final = 512
"""POSIX systems take 1,024 at once; more of them would be no cheaper."""
_ZEROS: Final = memoryview(bytes(2**16))


class SegmentWriter:
    """Pieces go into the file `fd` at their offsets, which only grow, and are there after `finish`. Until
    then they must not change. What lies between them, and behind the last one, is zero then, whatever it was.

    What lies side by side is written at once, up to 4 MiB or one piece: whenever the interpreter is released
    for a system call, other threads wake up for it, which costs more than the call does.

    By pwrite and not through a mapping: a file in memory gets huge pages without being asked to (where the
    host gives them), memory or a disk that is full is an OSError and not a SIGBUS, and nothing has to be
    unmapped before the file can be sealed.

    Args:
        size: of the file in bytes, all of which are written.
        attempt: calls what it is given, which writes; again, where that raises and room can be made.
    """

    def __init__(self, fd: int, size: int, attempt: Callable[[Callable[[], None]], object]) -> None:
        self._fd: Final = fd
        self._size: Final = size
        self._attempt: Final = attempt
        self._gathered: Final[list[memoryview]] = []
        self._begin = 0
        self._end = 0
        """Where what was gathered begins and ends."""

    def put(self, offset: int, piece: memoryview) -> None:
        """Write `piece`, or gather it. OSError; ValueError if it does not lie in the rest of the file."""
        if not self._end <= offset <= offset + len(piece) <= self._size:
            raise ValueError(
                f"{len(piece)} bytes at {offset} are not in a segment of {self._size} bytes, of which "
                f"{self._end} were put; put pieces in order"
            )
        self._fill(offset)
        self._gather(piece)

    def finish(self) -> None:
        """Write what was gathered, and zeros to the end. OSError."""
        self._fill(self._size)
        self._flush()

    def _fill(self, offset: int) -> None:
        while gap := offset - self._end:
            self._gather(_ZEROS[:gap])

    def _gather(self, piece: memoryview) -> None:
        end = self._end + len(piece)
        if end - self._begin > _GATHERED_BYTES or len(self._gathered) >= _GATHERED_PIECES:
            self._flush()
        self._gathered.append(piece)
        self._end = end

    def _flush(self) -> None:
        if not self._gathered:
            return
        self._attempt(partial(_write, self._fd, self._begin, self._gathered))
        self._gathered.clear()
        self._begin = self._end


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
