"""The bytes of one trace's arrays: written once, then never changed, and gone with the process."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from env_worker.arrays.forks import close_unshared, open_unshared
from env_worker.arrays.layout import HEADER_BYTES
from env_worker.arrays.writer import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_worker.arrays.spares import Spares
    from env_worker.arrays.writer import Put

MAGIC: Final = b"envtrio-arrays-1"
_NAME: Final = "envtrio-arrays"
# What file systems without O_TMPFILE answer.
_NO_NAMELESS_FILES: Final = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)


def rounded(size: int) -> int:
    """`size` bytes in whole pages: what a segment really takes."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


class Segment:
    """Bytes with a header that nobody changes, held by whoever needs them. Thread-safe.

    It begins with one holder. When the last one lets go, its file is closed, which frees it, or is left to
    `spares`, if it lies in memory that no other process was offered; then `on_gone` is called, in that
    thread. Made by `write_segment`.
    """

    def __init__(
        self,
        fd: int | None,
        size: int,
        id: str,
        *,
        in_file: bool,
        spares: Spares,
        on_gone: Callable[[], None],
    ) -> None:
        self.size: Final = size
        """Of the whole file in bytes: header, arrays, and what fills the last page."""
        self.id: Final = id
        """32 hexadecimal digits, as in the header."""
        self.in_file: Final = in_file
        """Whether reading may wait for a disk."""
        self._fd: Final = fd
        self._spares: Final = spares
        self._on_gone: Final = on_gone
        self._lock: Final = threading.Lock()
        self._holders = 1
        self._shared = False

    def share(self) -> int | None:
        """The descriptor, for other processes to open as /proc/PID/fd/N; None where they cannot, or if it is
        gone. From now on its memory is frozen by the kernel too, and never written again: who has it mapped
        sees it for as long as he likes."""
        with self._lock:
            if self._fd is None or not self._holders or not os.path.exists(f"/proc/self/fd/{self._fd}"):
                return None
            if not (self._shared or self.in_file):
                self._shared = True
                try:
                    _freeze(self._fd)
                except OSError:  # somebody has opened it unasked, and may write to it: nobody is to trust it
                    return None
            return self._fd

    def hold(self) -> None:
        """Be one more holder. ValueError if it is gone."""
        with self._lock:
            if not self._holders:
                raise ValueError(f"segment {self.id[:8]} is gone")
            self._holders += 1

    def drop(self) -> bool:
        """Let go. Whether it is gone with that."""
        with self._lock:
            self._holders -= 1
            if self._holders:
                return False
        if self._fd is None:
            pass
        elif self._shared or self.in_file:
            close_unshared(self._fd)
        else:
            self._spares.add(self._fd, self.size)
        self._on_gone()
        return True

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on. ValueError if they are not in it or it is gone, OSError if a disk
        fails."""
        if not 0 <= offset <= offset + length <= self.size:
            raise ValueError(f"{length} bytes at {offset} are not in a segment of {self.size} bytes")
        # Held, so that the descriptor is not closed and given to another file in the midst of it.
        self.hold()
        try:
            return b"" if self._fd is None or not length else _read(self._fd, offset, length)
        finally:
            self.drop()


def write_segment(
    size: int,
    fill: Callable[[Put], object],
    *,
    instance: str,
    id: str,
    folder: Path | None,
    spares: Spares,
    on_gone: Callable[[], None],
) -> Segment:
    """A segment in memory, or in a nameless file of `folder`.

    Args:
        size: bytes of header and arrays. Of a header alone no file is made.
        fill: puts the arrays behind the header.
        instance: of the worker, 32 hexadecimal digits, for the header.
        id: 32 hexadecimal digits of its own.
        folder: None: memory; where the host has no memfd, a nameless file of the folder for temporary files.
        spares: gives a file of memory, and gets it back in the end; gives way where the system has no room.
        on_gone: see `Segment`. Not called if this raises.

    OSError if the system has no room, no descriptor, or no such folder. Then nothing is left.
    """
    whole = rounded(size)
    if size <= HEADER_BYTES:
        fill(lambda offset, piece: None)  # it may have something to let go of
        return Segment(None, whole, id, in_file=False, spares=spares, on_gone=on_gone)
    in_memory = folder is None and hasattr(os, "memfd_create")
    fd = _memory(whole, spares) if in_memory else _file(folder or Path(tempfile.gettempdir()), whole, spares)
    try:
        # Only memory that the spares take is theirs to give back.
        writer = SegmentWriter(fd, whole, spares.clear if in_memory else lambda: False)
        writer.put(0, memoryview(MAGIC + instance.encode("ascii") + id.encode("ascii")))
        fill(writer.put)
        writer.finish()
    except BaseException:
        close_unshared(fd)
        raise
    return Segment(fd, whole, id, in_file=not in_memory, spares=spares, on_gone=on_gone)


def _memory(size: int, spares: Spares) -> int:
    """A file in memory of that size, with whatever in it, that no other process opens to write."""
    if (spare := spares.take(size)) is not None:
        return spare
    fd = _opened(lambda: os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), spares)
    return _sized(fd, lambda: os.ftruncate(fd, size))


def _file(folder: Path, size: int, spares: Spares) -> int:
    """A nameless file of that size, that no other process opens to write."""
    spares.give_way()  # for its descriptor
    fd = _opened(lambda: nameless_file(folder), spares)
    # A full disk is found before anything is written to it, and the file lies there in few parts.
    return _sized(fd, lambda: os.posix_fallocate(fd, 0, size))


def _opened(opener: Callable[[], int], spares: Spares) -> int:
    try:
        return open_unshared(opener)
    except OSError as error:
        if error.errno not in _NO_DESCRIPTORS or not spares.clear():
            raise
        return open_unshared(opener)


def _sized(fd: int, resize: Callable[[], object]) -> int:
    try:
        resize()
        os.fchmod(fd, 0o400)
    except BaseException:
        close_unshared(fd)
        raise
    return fd


def _freeze(fd: int) -> None:
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)


def nameless_file(folder: Path) -> int:
    """A descriptor of a new file of `folder` that has no name, and so is gone with the process. OSError."""
    if hasattr(os, "O_TMPFILE"):
        try:
            return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in _NO_NAMELESS_FILES:
                raise
    fd, path = tempfile.mkstemp(prefix=f"{_NAME}-", dir=folder)
    os.unlink(path)
    return fd


def check_folder(folder: Path) -> None:
    """ValueError naming the reason if no segment can be made in that folder."""
    try:
        os.close(nameless_file(folder))
    except OSError as error:
        raise ValueError(
            f"the spill folder {folder} cannot be used: {error.strerror}; give an existing folder that this "
            "user may write to"
        ) from error


def _read(fd: int, offset: int, length: int) -> bytes:
    piece = os.pread(fd, length, offset)
    if len(piece) == length:
        return piece
    pieces = [piece]
    missing = length - len(piece)
    while missing:
        piece = os.pread(fd, missing, offset + length - missing)
        if not piece:
            raise OSError(
                errno.EIO, f"a segment ends {missing} bytes before its size; its disk has lost them"
            )
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)
