"""The same host: a worker's arrays as memory of this process, without a byte through a socket.

Transport "memfd" of the protocol, see TransportOffer in training_array_service.proto.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import stat
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from env_client.training_arrays.body import check_copied, flat_bytes, place
from env_client.training_arrays.pages import Pages
from env_client.training_arrays.prefault import MIN_BYTES, PREFAULT

if sys.platform == "linux":
    import fcntl

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
_MAX_PARTS: Final = 2**16
"""Of all arrays. More are streamed, since each is a read of its own."""
_MAX_TEXT: Final = 2**22


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
        text = parameters.get("extents", "")
        if len(text) > _MAX_TEXT or text.count(";") > len(arrays) or text.count(",") > _MAX_PARTS:
            raise OfferRefused(f"it has more than {_MAX_PARTS} parts, or more lists of them than arrays")
        lists = text.split(";") if arrays else []
        if len(lists) != len(arrays):
            raise OfferRefused(f"it has parts for {len(lists)} arrays, expected {len(arrays)}")
        extents = tuple(tuple(map(_extent, text.split(",") if text else ())) for text in lists)
        for spec, parts in zip(arrays, extents, strict=True):
            if sum(part.length for part in parts) != spec.size_bytes:
                raise OfferRefused(f"its parts of {spec.name} do not have {spec.size_bytes} bytes")
            if any(part.offset < _HEADER_BYTES or part.offset + part.length > size for part in parts):
                raise OfferRefused(f"a part of {spec.name} lies outside of the file")
        return cls(pid, fd, segment, size, extents)


class OfferedFile:
    """A worker's file, open, which has proved that it is that worker's segment. Made by `offered_file`.

    As long as it is open it is there whole, whatever becomes of the arrays on the worker.
    """

    def __init__(self, file: int, offer: Offer, answer: Answer) -> None:
        self._file = file
        self._offer = offer
        self._answer = answer

    def arrays(self, out: Out, check: Callable[[], None]) -> dict[str, NDArray[Any]]:
        """The arrays by name.

        A large one that is one part of a file in memory is the file's memory, copied on write; others are
        copied out of it. A file that may still change, as each on a disk, is not mapped: who has it mapped is
        killed where it is made shorter, or cannot be read. Of such a file the checksum is checked.

        Args:
            out: arrays to read into.
            check: called now and then; what it raises ends the work.

        Raises:
            OfferRefused: the file cannot be read.
            InvalidRequestError: an array of `out` has another shape.
            ResourceExhaustedError: this process has no memory for them.
            ArraysCorruptError: the checksum differs.
        """
        is_frozen = _is_frozen(self._file)
        arrays = {}
        try:
            for spec, extents in zip(self._answer.arrays, self._offer.extents, strict=True):
                check()
                mapped = None
                if is_frozen and spec.name not in out and _is_mappable(extents, spec):
                    mapped = _mapped(self._file, extents[0], spec)
                if mapped is None:
                    arrays[spec.name] = place(spec, out)
                    _read(self._file, extents, arrays[spec.name], check)
                else:
                    arrays[spec.name] = mapped
        except OSError as error:
            raise OfferRefused(f"its file cannot be read: {error}") from error
        if not is_frozen:
            check_copied(self._answer, arrays.values(), check)
        return arrays


@contextlib.contextmanager
def offered_file(parameters: Mapping[str, str], instance: str, answer: Answer) -> Iterator[OfferedFile]:
    """The file that a worker offers.

    Args:
        parameters: of the offer.
        instance: of the worker that is said to have made it.
        answer: the arrays.

    Raises:
        OfferRefused: the file is not there, or is another one.
    """
    offer = Offer.of(parameters, answer.arrays)
    path = f"/proc/{offer.pid}/fd/{offer.fd}"
    try:
        # Looked at before it is opened: numbers come round again, and opening a device may do something.
        _check_file(os.stat(path), offer)
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError as error:
        raise OfferRefused(f"it cannot be opened: {error}", is_foreign=error.errno in _FOREIGN) from error
    try:
        _check_file(os.fstat(file), offer)
        _check_header(file, _MAGIC + instance.encode() + offer.segment.encode())
        yield OfferedFile(file, offer, answer)
    finally:
        os.close(file)


def _check_file(found: os.stat_result, offer: Offer) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_size != offer.size:
        raise OfferRefused(
            f"found no file of {offer.size} bytes (mode {found.st_mode:o}, {found.st_size} bytes)"
        )


def _check_header(file: int, header: bytes) -> None:
    try:
        found = os.pread(file, len(header), 0)
    except OSError as error:
        raise OfferRefused(f"its header cannot be read: {error}") from error
    if found != header:
        raise OfferRefused("what was opened is not that worker's segment")


def _is_frozen(file: int) -> bool:
    """Whether nobody can change it any more, or make it shorter."""
    if sys.platform != "linux":
        return False
    needed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE
    try:
        return fcntl.fcntl(file, fcntl.F_GET_SEALS) & needed == needed
    except OSError:  # It is on a disk, where nothing can be sealed.
        return False


def _is_mappable(extents: Sequence[Extent], spec: ArraySpec) -> bool:
    is_large = len(extents) == 1 and spec.size_bytes >= _MIN_MAPPED_BYTES
    return is_large and extents[0].offset % spec.dtype.itemsize == 0


def _mapped(file: int, extent: Extent, spec: ArraySpec) -> NDArray[Any] | None:
    """The array in the file's memory; None where no more can be mapped."""
    start = extent.offset - extent.offset % mmap.ALLOCATIONGRANULARITY
    try:
        pages = Pages(file, start, extent.offset + extent.length - start)
    except OSError:
        return None
    if extent.length >= MIN_BYTES:
        PREFAULT.add(pages)
    data = np.asarray(pages)[extent.offset - start :]
    return data.view(spec.dtype).reshape(spec.shape)


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


def _number(text: str, name: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise OfferRefused(f"its {name} is no decimal number")
    return int(text)


def _extent(text: str) -> Extent:
    offset, _, length = text.partition("+")
    return Extent(_number(offset, "part"), _number(length, "part"))
