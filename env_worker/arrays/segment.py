"""The bytes of one trace's arrays: written once, frozen, and gone with the process, however it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from env_worker.arrays.layout import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC: Final = b"envtrio-arrays-1"
_HUGE_PAGE: Final = 2**21
_NAME: Final = "envtrio-arrays"
# What file systems without O_TMPFILE answer.
_NO_NAMELESS_FILES: Final = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)

_open: Final[set[int]] = set()


def rounded(size: int) -> int:
    """`size` bytes in whole pages: what a segment really takes."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


class Segment:
    """Frozen bytes with a header, held by whoever needs them. Thread-safe.

    It begins with one holder. When the last one lets go, its descriptor is closed, which frees it, and
    `on_gone` is called, in that thread. Made by `write_segment`.
    """

    def __init__(
        self, fd: int | None, size: int, id: str, *, in_file: bool, on_gone: Callable[[], None]
    ) -> None:
        self.size: Final = size
        """Of the whole file in bytes: header, arrays, and what fills the last page."""
        self.id: Final = id
        """32 hexadecimal digits, as in the header."""
        self.in_file: Final = in_file
        """Whether reading may wait for a disk."""
        self._fd: Final = fd
        self._on_gone: Final = on_gone
        self._lock: Final = threading.Lock()
        self._holders = 1

    @property
    def shared_fd(self) -> int | None:
        """The descriptor, where other processes can open it as /proc/PID/fd/N; else None."""
        return self._fd if self._fd is not None and os.path.exists(f"/proc/self/fd/{self._fd}") else None

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
        if self._fd is not None:
            _open.discard(self._fd)
            os.close(self._fd)
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
    fill: Callable[[memoryview], None],
    *,
    instance: str,
    id: str,
    folder: Path | None,
    on_gone: Callable[[], None],
) -> Segment:
    """A frozen segment in memory, or in a nameless file of `folder`.

    Args:
        size: bytes of header and arrays. Of a header alone no file is made.
        fill: writes the arrays into a buffer of `size` bytes, and keeps no view of it.
        instance: of the worker, 32 hexadecimal digits, for the header.
        id: 32 hexadecimal digits of its own.
        folder: None: memory; where the host has no memfd, a nameless file of the folder for temporary files.
        on_gone: see `Segment`. Not called if this raises.

    OSError if the system has no room, no descriptor, or no such folder. Then nothing is left.
    """
    whole = rounded(size)
    if size <= HEADER_BYTES:
        fill(memoryview(bytearray(size)))  # it may have something to let go of
        return Segment(None, whole, id, in_file=False, on_gone=on_gone)
    in_memory = folder is None and hasattr(os, "memfd_create")
    if in_memory:
        fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        fd = nameless_file(folder or Path(tempfile.gettempdir()))
    _open.add(fd)
    try:
        if in_memory:
            os.ftruncate(fd, whole)
        else:
            # A full disk is an error here, and not a SIGBUS when the page is written.
            os.posix_fallocate(fd, 0, whole)
        _fill(fd, whole, MAGIC + instance.encode("ascii") + id.encode("ascii"), size, fill)
        if in_memory:
            seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        os.fchmod(fd, 0o400)
    except BaseException:
        _open.discard(fd)
        os.close(fd)
        raise
    return Segment(fd, whole, id, in_file=not in_memory, on_gone=on_gone)


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


def _fill(fd: int, whole: int, header: bytes, size: int, fill: Callable[[memoryview], None]) -> None:
    mapping = mmap.mmap(fd, whole)
    try:
        _advise(mapping, whole)
        mapping[: len(header)] = header
        with memoryview(mapping) as view, view[:size] as buffer:
            fill(buffer)
    except BaseException:
        # Views of it may live on in the traceback; it is unmapped with them.
        with contextlib.suppress(BufferError):
            mapping.close()
        raise
    mapping.close()  # a file that is still mapped to be written cannot be sealed


def _advise(mapping: mmap.mmap, whole: int) -> None:
    # Best effort: a kernel may know neither. Whole huge pages only, or the last one would take more than the
    # budget counts. A child that is forked meanwhile must not keep it mapped to be written.
    advices = (("MADV_HUGEPAGE", whole - whole % _HUGE_PAGE), ("MADV_DONTFORK", whole))
    for name, length in advices:
        if length and (advice := getattr(mmap, name, None)) is not None:
            with contextlib.suppress(OSError):
                mapping.madvise(advice, 0, length)


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


def _close_inherited() -> None:
    # A forked child that lives on would hold every segment that its parent has freed.
    while _open:
        with contextlib.suppress(OSError):
            os.close(_open.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)
