"""The bytes of one trace's arrays: written once, then never changed, and gone with the process."""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from env_worker.arrays.forks import close_unshared, open_unshared
from env_worker.arrays.layout import HEADER_BYTES
from env_worker.arrays.writer import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_worker.arrays.cut import Read
    from env_worker.arrays.spares import Spares
    from env_worker.arrays.writer import Put

logger = logging.getLogger(__name__)

MAGIC: Final = b"envtrio-arrays-1"
_NAME: Final = "envtrio-arrays"
# What file systems without O_TMPFILE answer.
_NO_NAMELESS_FILES: Final = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
_NO_ROOM: Final = (errno.ENOMEM, errno.ENOSPC)


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
        is_intact: Callable[[Read], bool],
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
        self._is_intact: Final = is_intact
        self._spares: Final = spares
        self._on_gone: Final = on_gone
        self._lock: Final = threading.Lock()
        self._holders = 1
        self._sharing: Final = threading.Lock()
        self._shared = False
        """Whether its memory may have been offered, so that it is never written again."""
        self._trusted: bool | None = None
        """Whether it was what had been written when it was frozen; None: not known yet."""

    def share(self) -> int | None:
        """The descriptor, for other processes to open as /proc/PID/fd/N; None where they cannot, or if it is
        gone. From now on its memory is frozen by the kernel too, and never written again: who has it mapped
        sees it for as long as he likes. When it is frozen all of it is read once: None, too, if it is not
        what was written, or can still be written to, by somebody who has opened it unasked."""
        with self._lock:
            if self._fd is None or not self._holders:
                return None
            self._holders += 1
        try:
            # Not under the lock: a gigabyte takes a while, and an event loop may read meanwhile.
            with self._sharing:
                return self._fd if self._may_share(self._fd) else None
        finally:
            self.drop()

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

    def _may_share(self, fd: int) -> bool:
        if not os.path.exists(f"/proc/self/fd/{fd}"):
            return False
        if self.in_file:
            return True  # whoever copies from it sums what he has got
        self._shared = True
        if self._trusted is None:
            try:
                _freeze(fd)
                self._trusted = self._is_intact(partial(_read, fd))
            except OSError:  # somebody may still write to it
                return False
            if not self._trusted:
                logger.error(
                    "segment=%.8s was written to by somebody who has opened it unasked; it is not offered to "
                    "be mapped, and the checksums of what is streamed from it will differ", self.id
                )  # fmt: skip
        return self._trusted


def write_segment(
    size: int,
    fill: Callable[[Put], object],
    *,
    is_intact: Callable[[Read], bool],
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
        is_intact: reads what was put, and says whether it is still the same.
        instance: of the worker, 32 hexadecimal digits, for the header.
        id: 32 hexadecimal digits of its own.
        folder: None: memory; where the host has no memfd, a nameless file of the folder for temporary files.
        spares: give a file of memory, and get it back in the end; give way to it, and where the system has no
            room.
        on_gone: see `Segment`. Not called if this raises.

    OSError if the system has no room, no descriptor, or no such folder. Then nothing is left.
    """
    whole = rounded(size)
    made = partial(Segment, size=whole, id=id, is_intact=is_intact, spares=spares, on_gone=on_gone)
    if size <= HEADER_BYTES:
        spares.give_way()  # its page counts as held, though it is none
        fill(lambda offset, piece: None)  # it may have something to let go of
        return made(None, in_file=False)
    in_memory = folder is None and hasattr(os, "memfd_create")
    fd = _memory(whole, spares) if in_memory else _file(folder or Path(tempfile.gettempdir()), whole, spares)
    try:
        # Only memory that the spares take is theirs to give back.
        short = _NO_ROOM if in_memory else ()
        writer = SegmentWriter(fd, whole, lambda write: spares.relieved(write, short))
        writer.put(0, memoryview(MAGIC + instance.encode("ascii") + id.encode("ascii")))
        fill(writer.put)
        writer.finish()
    except BaseException:
        close_unshared(fd)
        raise
    return made(fd, in_file=not in_memory)


def _memory(size: int, spares: Spares) -> int:
    """A file in memory of that size, with whatever in it, that no other process opens to write."""
    if (spare := spares.take(size)) is not None:
        return spare
    fd = _opened(partial(os.memfd_create, _NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), spares)
    return _sized(fd, lambda: os.ftruncate(fd, size))


def _file(folder: Path, size: int, spares: Spares) -> int:
    """A nameless file of that size, that no other process opens to write."""
    spares.give_way()  # for its descriptor
    fd = _opened(partial(nameless_file, folder), spares)
    # A full disk is found before anything is written to it, and the file lies there in few parts.
    return _sized(fd, lambda: os.posix_fallocate(fd, 0, size))


def _opened(opener: Callable[[], int], spares: Spares) -> int:
    return spares.relieved(partial(open_unshared, opener), _NO_DESCRIPTORS)


def _sized(fd: int, resize: Callable[[], object]) -> int:
    try:
        resize()
        os.fchmod(fd, 0o400)
    except BaseException:
        close_unshared(fd)
        raise
    return fd


def _freeze(fd: int) -> None:
    """Again: changes nothing. OSError if somebody has it mapped to write."""
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & seals != seals:
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
