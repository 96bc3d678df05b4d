"""Packed bodies: what is legal arrives whole, however it was cut on its way."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_worker.model.unpacking import STEP_BYTES, Unpacker


def unpacked(data: bytes, step: int = 1 << 20, coding: str = "gzip") -> tuple[bytes, bool]:
    """What comes of it where so many bytes arrive at a time, and whether that is all."""
    unpacker = Unpacker(coding)
    pieces = [piece for at in range(0, len(data), step) for piece in unpacker.pieces(data[at : at + step])]
    assert all(len(piece) <= STEP_BYTES for piece in pieces)
    return b"".join(pieces), unpacker.whole


@pytest.mark.parametrize("step", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize("behind", [b"", b"\n", b"\0" * 512, b"\x1f", b"text", b"\0\x1f\x8b"])
@pytest.mark.parametrize("coding", ["gzip", "x-gzip"])
def test_all_members_of_a_body_are_taken_and_nothing_behind_them(
    coding: str, behind: bytes, step: int
) -> None:
    first, second = b'{"a": 1, ', b'"b": 2}'
    for parts in ((first, second), (b"", first, b"", b"", second, b""), (first + second,)):
        data = b"".join(map(gzip.compress, parts)) + behind
        assert unpacked(data, step, coding) == (first + second, True)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=6), st.integers(1, 50))
def test_members_are_what_gzip_makes_of_them(parts: list[bytes], step: int) -> None:
    data = b"".join(map(gzip.compress, parts))
    assert unpacked(data, step) == (gzip.decompress(data), True)


@pytest.mark.parametrize("step", [1, 1 << 20])
@pytest.mark.parametrize("cut", [2, 5, 15, 24])
def test_a_member_without_its_end_is_not_whole(cut: int, step: int) -> None:
    data = gzip.compress(b"first") + gzip.compress(b"second")[:cut]
    assert unpacked(data, step)[1] is False


def test_a_member_that_is_broken_is_an_error() -> None:
    with pytest.raises(zlib.error):
        unpacked(gzip.compress(b"first") + b"\x1f\x8bxxxxxxxx")


def test_many_members_are_unpacked_within_the_same_bounds() -> None:
    unpacker = Unpacker("gzip")
    data = gzip.compress(b"a" * (8 << 20)) * 3
    sizes = [len(piece) for piece in unpacker.pieces(data)]
    assert sum(sizes) == 24 << 20
    assert max(sizes) <= unpacker.step
    empty = gzip.compress(b"")
    assert len(list(Unpacker("gzip").pieces(empty * 1000))) == 1000  # a pause after each


def test_deflated_bodies_have_no_members() -> None:
    data = zlib.compress(b"first")
    assert unpacked(data + data, coding="deflate") == (b"first", True)
    assert unpacked(data + gzip.compress(b"second"), coding="deflate") == (b"first", True)
