"""What is given out, and to whom nothing is."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from env_worker.arrays import segment as segment_module
from env_worker.arrays.cut import Cut, CutArray, Extent
from env_worker.arrays.errors import (
    ArraysNotFoundError,
    FieldIncompleteError,
    TokenRangeError,
    UnknownFieldError,
)
from env_worker.arrays.fetch import is_scattered
from env_worker.arrays.pieces import Pieces
from tests.helpers.array_episodes import (
    HOME,
    ROW_BYTES,
    add_answer,
    expected_body,
    is_empty,
    keys,
    new_episode,
    new_store,
    references,
)

UNKNOWN = "f" * 32


def test_what_cannot_be_given_is_said() -> None:
    store, episode = new_store(fields=("routed_experts", "sampling_mask")), new_episode()
    store.keep(episode)
    [key] = keys(episode)
    with pytest.raises(ArraysNotFoundError, match="under key ffffffff:") as missing:
        store.open(UNKNOWN, (), 0, None)
    assert UNKNOWN not in str(missing.value)
    with pytest.raises(UnknownFieldError, match="'tokens' is none of routed_experts, sampling_mask"):
        store.open(key, ["routed_experts", "tokens"], 0, None)
    with pytest.raises(UnknownFieldError, match="asked for twice"):
        store.open(key, ["routed_experts", "routed_experts"], 0, None)
    with pytest.raises(FieldIncompleteError, match="other fields only"):
        store.open(key, ["top_logprobs"], 0, None)
    for start, end in ((0, 6), (6, None), (3, 2), (-1, 2), (2**64, None)):
        with pytest.raises(TokenRangeError, match="does not lie within the branch's 5 tokens"):
            store.open(key, (), start, end)
    stats = store.stats()
    assert (stats.open_fetches, stats.fetches) == (0, 0)


def test_ranges_and_fields_in_the_order_asked_for() -> None:
    store, episode = new_store(), new_episode()
    store.keep(episode)
    [key] = keys(episode)
    with store.open(key, ["sampling_mask", "routed_experts"], 3, 5) as fetch:
        assert [(array.name, array.shape) for array in fetch.cut.arrays] == [
            ("sampling_mask.ids", (4,)),
            ("sampling_mask.counts", (2,)),
            ("routed_experts", (2, 2, 2)),
        ]
        body = b"".join(fetch.pieces())
    ids = np.array([2, 3, 4, 5, 2, 2], "<i4").tobytes()
    assert body == ids + episode.traces[0].nodes[1].routed_experts[1:].tobytes()  # type: ignore[index]
    with store.open(key, (), 2, 2) as fetch:
        assert list(fetch.pieces()) == []


@pytest.mark.parametrize("size", [1, 3, 8, 100, 2**20])
def test_pieces_have_exactly_their_size_and_span_arrays(size: int) -> None:
    store, episode = new_store(), new_episode(branches=2, tokens=11)
    store.keep(episode)
    for reference in references(episode):
        body = expected_body(episode, reference)
        with store.open(reference["key"], (), 0, None) as fetch:
            pieces = list(fetch.pieces(size))
        assert pieces == [body[start : start + size] for start in range(0, len(body), size)]
    with store.open(keys(episode)[0], (), 0, None) as fetch, pytest.raises(ValueError, match="size is 0"):
        next(fetch.pieces(0))


async def test_a_piece_of_very_many_parts_is_read_in_a_thread() -> None:
    """Thousands of reads one by one would hold the loop up for 10 ms."""
    store = new_store()
    episode, forks = new_episode(), 200
    trace = episode.traces[0]
    parent: int | None = None
    for number in range(forks):
        parent, _ = (add_answer(trace, parent, 1, seed=number) for _ in range(2))
    store.keep(episode)
    readers: list[str] = []

    def read(_: int, length: int) -> bytes:
        readers.append(threading.current_thread().name)
        return bytes(length)

    with ThreadPoolExecutor(1, "reading") as threads:
        for reference, scattered in ((references(episode)[-1], True), (references(episode)[0], False)):
            with store.open(reference["key"], (), 0, None) as fetch:
                assert fetch.scattered is scattered
                body, pieces = b"", Pieces(fetch, threads)
                while (piece := await pieces.next()) is not None:
                    body += piece
                assert body == expected_body(episode, reference)
                fetch.read = read  # type: ignore[method-assign]
                await Pieces(fetch, threads).next()
            assert all(name.startswith("reading") is scattered for name in readers)
            assert readers
            readers.clear()


@pytest.mark.parametrize(
    ("lengths", "scattered"),
    [
        ([], False),
        ([1] * 64, False),
        ([1] * 66, True),
        ([2**20] * 500, False),
        ([2**14 + 1] * 500, False),
        ([2**14 - 1] * 500, True),
        ([2**30, *[4] * 66], True),
        ([2**30, *[4] * 30, 2**30, *[4] * 30, 2**30], False),
    ],
)
def test_what_counts_is_how_many_parts_one_piece_has(lengths: list[int], scattered: bool) -> None:
    arrays = tuple(CutArray("x", "u1", (length,), length, (Extent(0, length),)) for length in lengths)
    assert is_scattered(Cut(arrays, sum(lengths), 0)) is scattered


def test_a_closed_fetch_reads_nothing_more() -> None:
    store, episode = new_store(), new_episode()
    store.keep(episode)
    fetch = store.open(keys(episode)[0], (), 0, None)
    pieces = fetch.pieces(1)
    next(pieces)
    for _ in range(2):
        fetch.close()
    assert store.stats().open_fetches == 0
    assert fetch.offer() is None
    with pytest.raises(ValueError, match="fetch is closed"):
        next(pieces)
    with pytest.raises(ValueError, match="fetch is closed"):
        fetch.read(0, 1)


def test_bytes_are_counted_as_they_are_sent_or_mapped() -> None:
    store, episode = new_store(), new_episode()
    store.keep(episode)
    with store.open(keys(episode)[0], ["routed_experts"], 0, None) as fetch:
        assert fetch.cut.body_bytes == 5 * ROW_BYTES
        pieces = fetch.pieces(6)
        next(pieces)
        assert store.stats().fetched_bytes == 6
        fetch.sent(100)
        fetch.offer()
        fetch.offer()
    stats = store.stats()
    assert (stats.fetches, stats.fetched_bytes, stats.mapped_bytes) == (1, 106, 20)


def test_what_is_offered_leads_to_the_same_bytes() -> None:
    store, episode = new_store(), new_episode(branches=2)
    store.keep(episode)
    for reference in references(episode):
        with store.open(reference["key"], (), 1, 4) as fetch:
            offer, body = fetch.offer(), b"".join(fetch.pieces())
            assert offer is not None
            with open(f"/proc/{offer['pid']}/fd/{offer['fd']}", "rb") as file:
                data = file.read()
            names = [array.name for array in fetch.cut.arrays]
        assert len(data) == int(offer["size"])
        assert data[:80].decode() == "envtrio-arrays-1" + HOME.instance + offer["segment"]
        parts = offer["extents"].split(";")
        assert len(parts) == len(names)
        extents = [
            tuple(map(int, extent.split("+"))) for part in parts for extent in part.split(",") if extent
        ]
        assert b"".join(data[offset : offset + length] for offset, length in extents) == body


def test_no_offer_where_processes_cannot_be_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    store, episode = new_store(), new_episode()
    store.keep(episode)
    monkeypatch.setattr(segment_module.os.path, "exists", lambda path: False)
    with store.open(keys(episode)[0], (), 0, None) as fetch:
        assert fetch.offer() is None


def test_a_disk_that_fails_while_a_fetch_is_opened_leaves_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    store, episode = new_store(), new_episode()
    store.keep(episode)

    def fail(*_: Any) -> bytes:
        raise OSError(errno.EIO, "gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        with pytest.raises(OSError, match="gone"):
            store.open(keys(episode)[0], (), 1, 4)
    assert store.stats().open_fetches == 0
    store.release(keys(episode))
    assert is_empty(store)
