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
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SIZE = 2**20


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    """An empty file."""
    fd = nameless_file(tmp_path)
    yield fd
    os.close(fd)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """What each system call was given: where to, how many pieces, how many bytes."""
    calls: list[tuple[int, int, int]] = []
    real = os.pwritev

    def count(fd: int, pieces: Sequence[memoryview], offset: int) -> int:
        calls.append((offset, len(pieces), sum(map(len, pieces))))
        return real(fd, pieces, offset)

    monkeypatch.setattr(os, "pwritev", count)
    return calls


def test_neighbours_are_written_together(fd: int, writes: list[tuple[int, int, int]]) -> None:
    writer = SegmentWriter(fd, SIZE)
    large = bytes(range(256)) * 300
    for offset, piece in ((10, b"abc"), (13, b"d"), (100, b"e"), (101, large), (101 + len(large), b"f")):
        writer.put(offset, memoryview(piece))
    writer.flush()
    writer.flush()
    assert writes == [(10, 2, 4), (100, 3, len(large) + 2)]
    assert os.pread(fd, SIZE, 0) == bytes(10) + b"abcd" + bytes(86) + b"e" + large + b"f"


def test_what_is_gathered_is_bounded_in_bytes_and_in_pieces(
    fd: int, writes: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GATHERED_BYTES", 10)
    monkeypatch.setattr(module, "_GATHERED_PIECES", 3)
    writer = SegmentWriter(fd, SIZE)
    offset = 0
    for length in (4, 6, 1, 1, 1, 1, 50, 9):
        writer.put(offset, memoryview(bytes(length)))
        offset += length
    writer.flush()
    assert writes == [(0, 2, 10), (10, 3, 3), (13, 1, 1), (14, 1, 50), (64, 1, 9)]


@pytest.mark.parametrize("most", [1, 7, 100_000])
def test_what_a_write_leaves_is_written_by_the_next_one(
    fd: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def short(fd: int, pieces: Sequence[memoryview], offset: int) -> int:
        calls.append(offset)
        return os.pwrite(fd, b"".join(pieces)[:most], offset)

    monkeypatch.setattr(os, "pwritev", short)
    writer = SegmentWriter(fd, SIZE)
    parts = [os.urandom(20), b"", os.urandom(1), os.urandom(14)]
    offset = 5
    for part in parts:
        writer.put(offset, memoryview(part))
        offset += len(part)
    writer.flush()
    assert os.pread(fd, SIZE, 5) == b"".join(parts)
    assert calls == list(range(5, offset, most))


def test_a_file_that_takes_nothing_is_an_error(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda fd, pieces, offset: 0)
    writer = SegmentWriter(fd, SIZE)
    writer.put(0, memoryview(bytes(100_000)))
    with pytest.raises(OSError, match="of 100000 bytes none could be written"):
        writer.flush()


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (SIZE, 1), (SIZE - 1, 2)])
def test_nothing_is_written_beyond_the_segment(fd: int, offset: int, length: int) -> None:
    with pytest.raises(ValueError, match=f"{length} bytes at {offset} are not in a segment of {SIZE} bytes"):
        SegmentWriter(fd, SIZE).put(offset, memoryview(bytes(length)))


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), max_size=20))
def test_pieces_come_to_their_offsets_in_whatever_order(parts: list[tuple[int, int]]) -> None:
    fd = os.memfd_create("test")
    expected = bytearray(100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_GATHERED_BYTES", 16)
        writer = SegmentWriter(fd, 100)
        for number, (offset, length) in enumerate(parts, 1):
            piece = bytearray([number]) * length
            writer.put(offset, memoryview(piece))
            expected[offset : offset + length] = piece
        writer.flush()
    os.ftruncate(fd, 100)
    assert os.pread(fd, 100, 0) == expected
    os.close(fd)
