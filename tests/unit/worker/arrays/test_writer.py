"""How pieces come into a segment's file."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_worker.arrays import writer as module
from env_worker.arrays.segment import nameless_file
from env_worker.arrays.writer import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

SIZE = 2**20


def once(write: Callable[[], None]) -> None:
    """There is nothing that could make room."""
    write()


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


def test_what_lies_side_by_side_is_written_together(fd: int, writes: list[tuple[int, int, int]]) -> None:
    large = bytes(range(256)) * 300
    writer = SegmentWriter(fd, 103 + len(large), once)
    for offset, piece in ((0, b"abc"), (3, b"d"), (100, b"e"), (101, large), (101 + len(large), b"f")):
        writer.put(offset, memoryview(piece))
    writer.finish()
    writer.finish()
    assert writes == [(0, 7, 103 + len(large))]
    assert os.pread(fd, SIZE, 0) == b"abcd" + bytes(96) + b"e" + large + b"f" + bytes(1)


def test_what_is_gathered_is_bounded_in_bytes_and_in_pieces(
    fd: int, writes: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GATHERED_BYTES", 10)
    monkeypatch.setattr(module, "_GATHERED_PIECES", 3)
    writer = SegmentWriter(fd, 73, once)
    offset = 0
    for length in (4, 6, 1, 1, 1, 1, 50, 9):
        writer.put(offset, memoryview(bytes(length)))
        offset += length
    writer.finish()
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
    parts = [os.urandom(20), b"", os.urandom(1), os.urandom(14)]
    writer, offset = SegmentWriter(fd, 40, once), 5
    for part in parts:
        writer.put(offset, memoryview(part))
        offset += len(part)
    writer.finish()
    assert os.pread(fd, SIZE, 0) == bytes(5) + b"".join(parts)
    assert calls == list(range(0, offset, most))


def test_a_file_that_takes_nothing_is_an_error(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda fd, pieces, offset: 0)
    writer = SegmentWriter(fd, 100_000, once)
    writer.put(0, memoryview(bytes(100_000)))
    with pytest.raises(OSError, match="of 100000 bytes none could be written"):
        writer.finish()


def test_a_write_may_be_made_once_more(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, though some was written."""
    calls: list[int] = []

    def full(fd: int, pieces: Sequence[memoryview], offset: int) -> int:
        calls.append(offset)
        if len(calls) == 2:
            raise OSError(errno.ENOMEM, "full")
        return os.pwrite(fd, b"".join(pieces)[: 3 if len(calls) == 1 else None], offset)

    def twice(write: Callable[[], None]) -> None:
        with pytest.raises(OSError, match="full"):
            write()
        write()

    monkeypatch.setattr(os, "pwritev", full)
    writer = SegmentWriter(fd, 8, twice)
    writer.put(0, memoryview(b"abcdefgh"))
    writer.finish()
    assert (os.pread(fd, SIZE, 0), calls) == (b"abcdefgh", [0, 3, 0])


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (SIZE, 1), (SIZE - 1, 2), (4, 1)])
def test_nothing_is_written_outside_of_the_segment_nor_twice(fd: int, offset: int, length: int) -> None:
    writer = SegmentWriter(fd, SIZE, once)
    writer.put(2, memoryview(b"abc"))
    said = f"{length} bytes at {offset} are not in a segment of {SIZE} bytes, of which 5 were put"
    with pytest.raises(ValueError, match=said):
        writer.put(offset, memoryview(bytes(length)))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30)), max_size=20), st.integers(0, 40))
def test_whatever_was_in_the_file_only_what_is_put_is_there(parts: list[tuple[int, int]], rest: int) -> None:
    fd = os.memfd_create("test")
    expected = bytearray()
    pieces: list[tuple[int, bytes]] = []
    for number, (gap, length) in enumerate(parts, 1):
        expected += bytes(gap)
        pieces.append((len(expected), bytes([number]) * length))
        expected += pieces[-1][1]
    expected += bytes(rest)
    os.pwrite(fd, b"\xaa" * len(expected), 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_GATHERED_BYTES", 16)
        patch.setattr(module, "_ZEROS", memoryview(bytes(7)))
        writer = SegmentWriter(fd, len(expected), once)
        for offset, piece in pieces:
            writer.put(offset, memoryview(piece))
        writer.finish()
    assert os.pread(fd, SIZE, 0) == expected
    os.close(fd)
