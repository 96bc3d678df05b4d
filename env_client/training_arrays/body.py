"""Where the bytes of a fetch go: new arrays, or those that the caller has made."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import google_crc32c
import numpy as np

from env_client.errors import (
    ArrayProtocolError,
    ArraysCorruptError,
    InvalidRequestError,
    ResourceExhaustedError,
)
from env_client.training_arrays.excerpt import excerpt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from env_client.training_arrays.answer import Answer, Ask
    from env_client.training_arrays.reference import ArraySpec

Out: TypeAlias = "Mapping[str, NDArray[Any]]"
"""Arrays by name that the caller has made. Names that are missing get new ones."""

_CHECKED_BYTES: Final = 2**20


def check_out(out: Out, ask: Ask) -> None:
    """Refuse arrays that nothing could be read into. Their shapes are checked when the worker has answered.

    Raises:
        InvalidRequestError: a name, dtype, memory layout, or the shape for a whole branch, is wrong; or two
            of them share memory.
    """
    if not isinstance(out, Mapping):
        raise _unfit("out", type(out).__name__, "arrays by name")
    whole = ask.whole
    for name, array in out.items():
        if name not in whole:
            raise _unfit("out", excerpt(name), f"one of {', '.join(whole) or 'none: no field is complete'}")
        expected = whole[name]
        if not isinstance(array, np.ndarray):
            raise _unfit(f"out[{name!r}]", type(array).__name__, "a numpy array")
        if array.dtype != expected.dtype:
            raise _unfit(f"out[{name!r}]", f"dtype {array.dtype}", f"{expected.dtype}")
        if not array.flags.c_contiguous or not array.flags.writeable:
            found = "a read-only array" if array.flags.c_contiguous else f"strides {array.strides}"
            raise _unfit(f"out[{name!r}]", found, "a writable array in C order, without gaps")
        if ask.is_whole:
            _check_shape(array, expected)
    for (name, array), (other, its) in itertools.combinations(out.items(), 2):
        if np.may_share_memory(array, its):  # Exact, as neither has gaps.
            raise _unfit(f"out[{name!r}]", f"memory that out[{other!r}] has too", "memory of its own")


def place(spec: ArraySpec, out: Out) -> NDArray[Any]:
    """The array for this one; its contents are not set yet.

    Raises:
        InvalidRequestError: that of `out` has another shape.
        ResourceExhaustedError: this process has no memory for a new one.
    """
    if spec.name not in out:
        try:
            return np.empty(spec.shape, spec.dtype)
        except MemoryError as error:
            raise ResourceExhaustedError(
                f"{spec}: this process has no memory for its {spec.size_bytes} bytes; fetch fewer tokens or "
                "fields at once, and let go of arrays that are done with",
                metadata={"field": spec.name, "value": str(spec.size_bytes)},
            ) from error
    _check_shape(out[spec.name], spec)
    return out[spec.name]


def flat_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of an array in C order, a view. The array is not empty."""
    # Not of a subclass, which may have ideas of its own on what is written to it.
    return np.asarray(array).reshape(-1).view(np.uint8)


def check_copied(answer: Answer, arrays: Iterable[NDArray[Any]], check: Callable[[], None]) -> None:
    """Whether arrays that came by another way than pieces are what the worker says.

    Args:
        answer: what it says.
        arrays: in its order.
        check: called now and then; what it raises ends the work.

    Raises:
        ArraysCorruptError: the checksum differs.
    """
    crc32c = 0
    for array in arrays:
        data = flat_bytes(array) if array.nbytes else np.empty(0, np.uint8)
        for begin in range(0, len(data), _CHECKED_BYTES):
            check()
            crc32c = _extended(crc32c, data[begin : begin + _CHECKED_BYTES])
    _check_crc32c(crc32c, answer)


class Body:
    """Takes the pieces of a body in order, straight to their places, and checks what came.

    Args:
        answer: what the worker says will come.
        arrays: where it goes, in its order.
    """

    def __init__(self, answer: Answer, arrays: Iterable[NDArray[Any]]) -> None:
        self._answer = answer
        self._left = [flat_bytes(array) for array in arrays if array.nbytes][::-1]
        self._crc32c = 0
        self.received_bytes = 0

    def put(self, piece: NDArray[np.uint8]) -> None:
        """Take the next piece.

        Raises:
            ArrayProtocolError: more came than the descriptor says, or nothing, which could go on for ever.
        """
        if not len(piece):
            raise ArrayProtocolError("a piece without bytes came")
        self.received_bytes += len(piece)
        if self.received_bytes > self._answer.body_bytes:
            raise ArrayProtocolError(
                f"{self.received_bytes} bytes came, expected {self._answer.body_bytes} as the descriptor says"
            )
        self._crc32c = _extended(self._crc32c, piece)
        while len(piece):
            place = self._left[-1]
            part = piece[: len(place)]
            place[: len(part)] = part
            piece = piece[len(part) :]
            self._left[-1] = place[len(part) :]
            if not len(self._left[-1]):
                self._left.pop()

    def check(self) -> None:
        """All has come, and nothing was changed on the way.

        Raises:
            ArrayProtocolError: less came than the descriptor says.
            ArraysCorruptError: the checksum differs.
        """
        if self.received_bytes < self._answer.body_bytes:
            raise ArrayProtocolError(
                f"{self.received_bytes} bytes came, expected {self._answer.body_bytes} as the descriptor says"
            )
        _check_crc32c(self._crc32c, self._answer)


def _extended(crc32c: int, piece: NDArray[np.uint8]) -> int:
    # The extension in C reads an array's memory as it is. The fallback in Python wants plain bytes.
    data: Any = piece if google_crc32c.implementation == "c" else piece.tobytes()
    extended: int = google_crc32c.extend(crc32c, data)
    return extended


def _check_crc32c(found: int, answer: Answer) -> None:
    if found != answer.body_crc32c:
        raise ArraysCorruptError(
            f"{answer.body_bytes} bytes came with the CRC-32C {found:#010x}, expected "
            f"{answer.body_crc32c:#010x} as the descriptor says: fetch them again; if it "
            "ends so again, look for faulty memory, disks or network hardware"
        )


def _check_shape(array: NDArray[Any], spec: ArraySpec) -> None:
    if array.shape != spec.shape:
        raise _unfit(f"out[{spec.name!r}]", f"shape {list(array.shape)}", str(list(spec.shape)))


def _unfit(name: str, found: str, expected: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{name}: found {found}, expected {expected}; mend the argument, or leave it out for new arrays",
        metadata={"field": "out"},
    )
