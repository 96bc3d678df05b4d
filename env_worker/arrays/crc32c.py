"""CRC-32C of bytes that are not all at hand at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import google_crc32c

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_POLYNOMIAL: Final = 0x82F63B78
"""Castagnoli's, bits reversed: bit 31 is x^0, bit 0 is x^31, and x^32 is left out."""
_ONE: Final = 1 << 31


def extend(crc: int, data: bytes | npt.NDArray[np.uint8]) -> int:
    """The CRC-32C of bytes whose own is `crc` (0 of none), followed by `data`: bytes or a C-order array."""
    # An array's memory is read in place; of memoryviews and bytearrays the library takes none.
    result: int = google_crc32c.extend(crc, data)
    return result


def combine(crc_a: int, crc_b: int, length_b: int) -> int:
    """The CRC-32C of A followed by B, from those of A and B and the number of bytes of B: O(log length_b).

    ValueError if `length_b` is negative.
    """
    return shift(crc_a, length_b) ^ crc_b


def cut_front(crc_ab: int, crc_a: int, length_b: int) -> int:
    """The CRC-32C of B, from those of A followed by B, and of A, and the number of bytes of B.

    As `combine`, since addition is its own inverse here.
    """
    return combine(crc_a, crc_ab, length_b)


def shift(crc: int, length: int) -> int:
    """`crc`, a polynomial, times x^(8 length). ValueError if `length` is negative."""
    if length < 0:
        raise ValueError(f"length is {length}, expected 0 or more bytes")
    power = 0
    while length and crc:
        if length & 1:
            crc = _product(_POWERS[power], crc)
        length >>= 1
        power += 1
    return crc


def _product(a: int, b: int) -> int:
    """`a` times `b`, polynomials over GF(2) modulo Castagnoli's."""
    result = 0
    while a:
        if a & _ONE:
            result ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return result


def _powers() -> list[int]:
    found = [_ONE >> 8]
    while len(found) < 64:
        found.append(_product(found[-1], found[-1]))
    return found


_POWERS: Final = _powers()
"""x^(8 * 2^n): what 2^n bytes do to the CRC of the bytes before them."""
