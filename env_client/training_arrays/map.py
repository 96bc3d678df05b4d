"""The same host: a worker's arrays as memory of this process, without a byte through a socket.

Transport "memfd" of the protocol, see TransportOffer in training_array_service.proto.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import re
import stat
import sys
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from env_client.training_arrays.body import flat_bytes, place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from env_client.training_arrays.answer import Answer
    from env_client.training_arrays.body import Out
    from env_client.training_arrays.reference import ArraySpec

TRANSPORT: Final = "memfd"
CAN_MAP: Final = sys.platform == "linux"

_MAGIC: Final = b"envtrio-arrays-1"
_HEADER_BYTES: Final = 4096
_FOREIGN: Final = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM})

_MIN_MAPPED_BYTES: Final = 256 * 1024
"""Smaller arrays are copied: a mapping costs as much, and keeps the worker's whole segment in memory."""
_READ_BYTES: Final = 64 * 1024 * 1024
_PREFAULT_BYTES: Final = 16 * 1024 * 1024
"""From so much on threads enter the pages: a reader that does it by reading is slowed down threefold."""
_CHUNK_BYTES: Final = 8 * 1024 * 1024
_MAX_PREFAULT_THREADS: Final = 4

_MAP_NORESERVE: Final = 0x4000
_MADV_POPULATE_READ: Final = 22  # Linux 5.14.


class OfferRefused(Exception):
    """An offer cannot be taken, so the bytes are fetched as a stream.

    Attributes:
        is_foreign: the file could not be opened at all, as on another host or by another user.
    """

    def __init__(self, why: str, *, is_foreign: bool = False) -> None:
        super().__init__(why)
        self.is_foreign = is_foreign


class Extent(NamedTuple):
    """A part of the file, in bytes."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Offer:
    """An offer whose numbers were checked. `extents` has each array's parts, in the descriptor's order."""

    pid: int
    fd: int
    segment: str
    size: int
    extents: tuple[tuple[Extent, ...], ...]

    @classmethod
    def of(cls, parameters: Mapping[str, str], arrays: Sequence[ArraySpec]) -> Offer:
        """The offer of these arrays.

        Raises:
            OfferRefused: it is malformed, or does not fit them.
        """
        pid, fd, size = (_number(parameters.get(name, ""), name) for name in ("pid", "fd", "size"))
        segment = parameters.get("segment", "")
        if not re.fullmatch(r"[0-9a-f]{32}", segment):
            raise OfferRefused("its segment is not 32 hexadecimal digits")
        lists = parameters.get("extents", "").split(";") if arrays else []
        if len(lists) != len(arrays):
            raise OfferRefused(f"it has parts for {len(lists)} arrays, expected {len(arrays)}")
        extents = tuple(tuple(map(_extent, text.split(",") if text else ())) for text in lists)
        for spec, parts in zip(arrays, extents, strict=True):
            if sum(part.length for part in parts) != spec.size_bytes:
                raise OfferRefused(f"its parts of {spec.name} do not have {spec.size_bytes} bytes")
            if any(part.offset < _HEADER_BYTES or part.offset + part.length > size for part in parts):
                raise OfferRefused(f"a part of {spec.name} lies outside of the file")
        return cls(pid, fd, segment, size, extents)


def take_offer(
    parameters: Mapping[str, str],
    instance: str,
    answer: Answer,
    out: Out,
    check: Callable[[], None],
) -> dict[str, NDArray[Any]]:
    """The arrays of an answer, from the worker's file.

    An array that is one part of the file is the file's memory, copied on write; others are copied out of it.

    Args:
        parameters: of the offer.
        instance: of the worker that is said to have made it.
        answer: the arrays.
        out: arrays to read into.
        check: called now and then; what it raises ends the work.

    Raises:
        OfferRefused: the file is not there, or is another one.
        InvalidRequestError: an array of `out` has another shape.
    """
    offer = Offer.of(parameters, answer.arrays)
    arrays = {}
    try:
        with _opened(offer, instance) as file:
            for spec, extents in zip(answer.arrays, offer.extents, strict=True):
                check()
                if spec.name not in out and _is_mappable(extents, spec):
                    arrays[spec.name] = _mapped(file, extents[0], spec)
                else:
                    arrays[spec.name] = place(spec, out)
                    _read(file, extents, arrays[spec.name], check)
    except OSError as error:
        raise OfferRefused(f"its file cannot be read: {error}") from error
    return arrays


@contextlib.contextmanager
def _opened(offer: Offer, instance: str) -> Iterator[int]:
    """The offered file, which has proved that it is that worker's segment."""
    path = f"/proc/{offer.pid}/fd/{offer.fd}"
    try:
        # Looked at before it is opened: numbers come round again, and opening a device may do something.
        _check_file(os.stat(path), offer)
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError as error:
        raise OfferRefused(f"it cannot be opened: {error}", is_foreign=error.errno in _FOREIGN) from error
    try:
        _check_file(os.fstat(file), offer)
        header = _MAGIC + instance.encode() + offer.segment.encode()
        if os.pread(file, len(header), 0) != header:
            raise OfferRefused("what was opened is not that worker's segment")
        yield file
    finally:
        os.close(file)


def _check_file(found: os.stat_result, offer: Offer) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_size != offer.size:
        raise OfferRefused(
            f"found no file of {offer.size} bytes (mode {found.st_mode:o}, {found.st_size} bytes)"
        )


def _is_mappable(extents: Sequence[Extent], spec: ArraySpec) -> bool:
    is_large = len(extents) == 1 and spec.size_bytes >= _MIN_MAPPED_BYTES
    return is_large and extents[0].offset % spec.dtype.itemsize == 0


def _read(file: int, extents: Sequence[Extent], array: NDArray[Any], check: Callable[[], None]) -> None:
    """Copy the parts into an array, end to end."""
    left = flat_bytes(array).data if array.nbytes else memoryview(b"")
    for offset, length in extents:
        end = offset + length
        while offset < end:
            check()
            count = os.preadv(file, [left[: min(end - offset, _READ_BYTES)]], offset)
            if not count:
                raise OfferRefused(f"the file ends at {offset}, within an array")
            offset, left = offset + count, left[count:]


class _Mapping:
    """Memory that is unmapped when the last array that was made of it is gone.

    mmap.mmap would keep a descriptor open for each array, and a trainer holds thousands of them.
    """

    def __init__(self, file: int, offset: int, length: int) -> None:
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        # Private: what the caller writes is the caller's alone. Not reserved: it is rarely written to at all.
        address = _libc().mmap(None, length, protection, mmap.MAP_PRIVATE | _MAP_NORESERVE, file, offset)
        if address in (None, ctypes.c_void_p(-1).value):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self.address: int = address
        self.length = length
        # numpy makes arrays of whatever has this attribute, and keeps it alive.
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (length,),
            "data": (address, False),
        }
        # Not at the interpreter's end, when arrays may still be read.
        weakref.finalize(self, _libc().munmap, address, length).atexit = False


def _mapped(file: int, extent: Extent, spec: ArraySpec) -> NDArray[Any]:
    start = extent.offset - extent.offset % mmap.ALLOCATIONGRANULARITY
    mapping = _Mapping(file, start, extent.offset + extent.length - start)
    if extent.length >= _PREFAULT_BYTES:
        _prefault(mapping)
    data = np.asarray(mapping)[extent.offset - start :]
    return data.view(spec.dtype).reshape(spec.shape)


def _prefault(mapping: _Mapping) -> None:
    """Have threads enter a mapping's pages, ahead of whoever reads it. It is right without, only slower."""
    # They share one iterator, so that together they go from the beginning to the end, as a reader does.
    chunks = iter(range(0, mapping.length, _CHUNK_BYTES))
    for _ in range(min(_MAX_PREFAULT_THREADS, len(os.sched_getaffinity(0)))):
        with contextlib.suppress(RuntimeError):  # No thread can be started any more.
            threading.Thread(target=_enter_pages, args=(mapping, chunks), name="envtrio-prefault").start()


def _enter_pages(mapping: _Mapping, chunks: Iterator[int]) -> None:
    madvise = _libc().madvise  # Lets go of the interpreter meanwhile, as all that ctypes calls.
    for begin in chunks:
        length = min(_CHUNK_BYTES, mapping.length - begin)
        madvise(mapping.address + begin, length, _MADV_POPULATE_READ)


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64
    ]  # fmt: skip
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _number(text: str, name: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise OfferRefused(f"its {name} is no decimal number")
    return int(text)


def _extent(text: str) -> Extent:
    offset, _, length = text.partition("+")
    return Extent(_number(offset, "part"), _number(length, "part"))
