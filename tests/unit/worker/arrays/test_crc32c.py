"""CRC-32C of bytes that are put together, cut apart, and read where they lie."""

from __future__ import annotations

import google_crc32c
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from env_worker.arrays import crc32c


def test_the_check_value_of_the_standard() -> None:
    assert crc32c.extend(0, b"123456789") == 0xE3069283
    assert crc32c.extend(0, b"") == 0


@given(st.binary(max_size=300), st.binary(max_size=300))
@example(b"", b"")
@example(b"a", b"")
@example(b"", b"a")
@example(b"\0" * 8, b"\0" * 8)
def test_two_checksums_combine_into_that_of_both_and_come_apart_again(a: bytes, b: bytes) -> None:
    crc_a, crc_b, crc_ab = (google_crc32c.value(data) for data in (a, b, a + b))
    assert crc32c.extend(crc_a, b) == crc_ab
    assert crc32c.combine(crc_a, crc_b, len(b)) == crc_ab
    assert crc32c.cut_front(crc_ab, crc_a, len(b)) == crc_b


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**50), st.integers(0, 2**50))
def test_shifts_add_up_whatever_the_length(crc: int, first: int, second: int) -> None:
    assert crc32c.shift(crc32c.shift(crc, first), second) == crc32c.shift(crc, first + second)


def test_a_length_of_megabytes() -> None:
    zeros = bytes(5_000_003)
    crc = google_crc32c.value(b"before")
    assert crc32c.combine(crc, google_crc32c.value(zeros), len(zeros)) == google_crc32c.extend(crc, zeros)


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(ValueError, match="length is -1, expected 0 or more"):
        crc32c.combine(1, 2, -1)


@pytest.mark.parametrize("dtype", ["u1", "<u2", "<i4", "<f4"])
def test_an_array_is_read_in_place_whatever_its_dtype(dtype: str) -> None:
    array = np.arange(240).astype(dtype).reshape(5, 24, 2)
    assert crc32c.extend(7, array[1:4]) == google_crc32c.extend(7, array[1:4].tobytes())
