"""Where the bytes of a fetch go: new arrays, or those that the caller has made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import google_crc32c
import numpy as np

from env_client.errors import ArrayProtocolError, ArraysCorruptError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from env_client.training_arrays.answer import Answer, Ask
    from env_client.training_arrays.reference import ArraySpec

Out: TypeAlias = "Mapping[str, NDArray[Any]]"
"""Arrays by name that the caller has made. Names that are missing get new ones."""


def check_out(out: Out, ask: Ask) -> None:
    """Refuse arrays that nothing could be read into. Their shapes are checked when the worker has answered.

    Raises:
        InvalidRequestError: a name, dtype, memory layout, or the shape for a whole branch, is wrong.
    """
    if not isinstance(out, Mapping):
        raise _unfit("out", type(out).__name__, "arrays by name")
    whole = ask.whole
    for name, array in out.items():
        if name not in whole:
            raise _unfit("out", repr(name), f"one of {', '.join(whole) or 'none: no field is complete'}")
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


def place(spec: ArraySpec, out: Out) -> NDArray[Any]:
    """The array for this one; its contents are not set yet.

    Raises:
        InvalidRequestError: that of `out` has another shape.
    """
    if spec.name not in out:
        return np.empty(spec.shape, spec.dtype)
    _check_shape(out[spec.name], spec)
    return out[spec.name]


def flat_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of an array in C order, a view. The array is not empty."""
    return array.reshape(-1).view(np.uint8)


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
            ArrayProtocolError: more came than the descriptor says.
        """
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
        if self._crc32c != self._answer.body_crc32c:
            raise ArraysCorruptError(
                f"{self.received_bytes} bytes came with the CRC-32C {self._crc32c:#010x}, expected "
                f"{self._answer.body_crc32c:#010x} as the descriptor says: fetch them again; if it "
                "ends so again, look for faulty memory or network hardware"
            )


def _extended(crc32c: int, piece: NDArray[np.uint8]) -> int:
    # The extension in C reads an array's memory as it is. The fallback in Python wants plain bytes.
    data: Any = piece if google_crc32c.implementation == "c" else piece.tobytes()
    extended: int = google_crc32c.extend(crc32c, data)
    return extended


def _check_shape(array: NDArray[Any], spec: ArraySpec) -> None:
    if array.shape != spec.shape:
        raise _unfit(f"out[{spec.name!r}]", f"shape {list(array.shape)}", str(list(spec.shape)))


def _unfit(name: str, found: str, expected: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{name}: found {found}, expected {expected}; mend the argument, or leave it out for new arrays",
        metadata={"field": "out"},
    )
