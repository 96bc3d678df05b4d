"""How pieces come into a segment's file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_worker.arrays import writer as module
from env_worker.arrays.segment import nameless_file
from env_worker.arrays.writer import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZE = 2**20


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    """An empty file."""
    fd = nameless_file(tmp_path)
    yield fd
    os.close(fd)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each pwrite was given, of which it writes a half at a time."""
    sizes: list[int] = []
    real = os.pwrite

    def half(fd: int, data: memoryview, offset: int) -> int:
        sizes.append(len(data))
        return real(fd, data[: (len(data) + 1) // 2], offset)

    monkeypatch.setattr(os, "pwrite", half)
    return sizes


def test_small_neighbours_are_written_together(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    real = os.pwrite

    def count(fd: int, data: memoryview, offset: int) -> int:
        calls.append((offset, len(data)))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", count)
    writer = SegmentWriter(fd, SIZE)
    large = bytes(range(256)) * 300
    for offset, piece in ((10, b"abc"), (13, b"d"), (100, b"e"), (101, large), (101 + len(large), b"f")):
        writer.put(offset, memoryview(piece))
    writer.flush()
    writer.flush()
    assert calls == [(10, 4), (100, 1), (101, len(large)), (101 + len(large), 1)]
    assert os.pread(fd, SIZE, 0) == bytes(10) + b"abcd" + bytes(86) + b"e" + large + b"f"


def test_what_a_write_leaves_is_written_by_the_next_one(fd: int, writes: list[int]) -> None:
    writer = SegmentWriter(fd, SIZE)
    large = os.urandom(100_000)
    writer.put(5, memoryview(large))
    writer.put(5 + len(large), memoryview(b"12345"))
    writer.flush()
    assert os.pread(fd, SIZE, 5) == large + b"12345"
    assert len(writes) > 10


def test_a_file_that_takes_nothing_is_an_error(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: 0)
    with pytest.raises(OSError, match="of 100000 bytes none could be written"):
        SegmentWriter(fd, SIZE).put(0, memoryview(bytes(100_000)))


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (SIZE, 1), (SIZE - 1, 2)])
def test_nothing_is_written_beyond_the_segment(fd: int, offset: int, length: int) -> None:
    with pytest.raises(ValueError, match=f"{length} bytes at {offset} are not in a segment of {SIZE} bytes"):
        SegmentWriter(fd, SIZE).put(offset, memoryview(bytes(length)))


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), max_size=20))
def test_pieces_come_to_their_offsets_in_whatever_order(parts: list[tuple[int, int]]) -> None:
    fd = os.memfd_create("test")
    expected = bytearray(100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LARGE_BYTES", 16)
        writer = SegmentWriter(fd, 100)
        for number, (offset, length) in enumerate(parts, 1):
            piece = bytearray([number]) * length
            writer.put(offset, memoryview(piece))
            expected[offset : offset + length] = piece
            piece[:] = bytes(length)  # it is not needed afterwards
        writer.flush()
    os.ftruncate(fd, 100)
    assert os.pread(fd, 100, 0) == expected
    os.close(fd)
