"""Arrays in base64: an `.npy` file, or plain bytes of a known shape and dtype.

`numpy.load` would allocate what a header claims, and evaluates it as Python; here the bytes that came are
looked at in place, and a header that does not fit them is refused.
"""

from __future__ import annotations

import binascii
import math
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from env_worker.model.fields.json_values import FieldError, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAGIC: Final = b"\x93NUMPY"
_MOST_HEADER_BYTES: Final = 4096
_PIECE: Final = 1 << 20
"""Characters, of which four make three bytes: a millisecond or two."""
_DIMENSIONS: Final = 3
_DTYPE: Final = re.compile(r"[<>|=]?[iu][1248]|u?int(?:8|16|32|64)")
_DESCR: Final = re.compile(r"'descr'\s*:\s*'([^']*)'")
_FORTRAN: Final = re.compile(r"'fortran_order'\s*:\s*(True|False)")
_SHAPE: Final = re.compile(r"'shape'\s*:\s*\(\s*((?:\d{1,15}\s*,?\s*)*)\)")


def from_base64(text: str, what: str) -> bytes:
    """The bytes of `text`. FieldError if it is no base64, or cut off. Other threads get their turn."""
    pieces: list[bytes] = []
    try:
        for start in range(0, len(text), _PIECE):
            if start and len(pieces[-1]) != _PIECE // 4 * 3:
                raise ValueError("padding before its end")
            pieces.append(binascii.a2b_base64(text[start : start + _PIECE], strict_mode=True))
        return b"".join(pieces)
    except ValueError as error:
        raise FieldError(f"{what} of {len(text)} characters is not base64: {error}") from None


def from_npy(data: bytes, what: str) -> NDArray[Any]:
    """The integers that an `.npy` file holds, read-only. FieldError if it is none, or of another length."""
    if data[:6] != _MAGIC or len(data) < 12:
        raise FieldError(f"{what} of {len(data)} bytes is no .npy file")
    # Version 1 has two bytes for the header's length, later ones four.
    size_bytes = 2 if data[6] == 1 else 4
    size = int.from_bytes(data[8 : 8 + size_bytes], "little")
    start = 8 + size_bytes + size
    if size > _MOST_HEADER_BYTES or start > len(data):
        raise FieldError(f"{what} has an .npy header of {size} bytes, the limit is {_MOST_HEADER_BYTES}")
    header = data[8 + size_bytes : start].decode("latin1")
    descr, fortran, shape = _DESCR.search(header), _FORTRAN.search(header), _SHAPE.search(header)
    if descr is None or fortran is None or shape is None:
        raise FieldError(f"{what} has an .npy header that tells no dtype, order and shape")
    lengths = [int(length) for length in re.findall(r"\d+", shape[1])]
    return from_bytes(data, descr[1], lengths, what, start=start, order="F" if fortran[1] == "True" else "C")


def from_bytes(
    data: bytes, dtype: str, shape: list[int], what: str, *, start: int = 0, order: str = "C"
) -> NDArray[Any]:
    """The integers that are in `data` from byte `start` to its end, read-only. FieldError if they do not fit
    `shape`."""
    if not _DTYPE.fullmatch(dtype):
        raise FieldError(f"{what} has the dtype {shown(dtype)}, expected one of integers")
    kind = np.dtype(dtype)
    if len(shape) != _DIMENSIONS:
        raise FieldError(f"{what} has shape {str(tuple(shape))[:80]}, expected (rows, layers, top_k)")
    expected, found = math.prod(shape) * kind.itemsize, len(data) - start
    if expected != found:
        raise FieldError(
            f"{what} has {found} bytes, expected {expected} for shape {tuple(shape)} of {kind.name}"
        )
    flat = np.frombuffer(data, kind, offset=start) if found else np.empty(0, kind)
    try:
        return flat.reshape(shape, order="F" if order == "F" else "C")
    except ValueError as error:  # nothing, of lengths beyond what memory could ever have
        raise FieldError(f"{what} has the shape {tuple(shape)}, which no array has: {error}") from None
