"""Episodes that lie where others were: only in memory that nobody else was offered, within the budget, and
with no byte of what was in it."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings

from env_worker.arrays import spares as module
from env_worker.arrays import store as store_module
from env_worker.arrays.budget import Room
from env_worker.arrays.errors import ArrayBudgetExceededError
from env_worker.arrays.forks import open_unshared
from env_worker.arrays.layout import TraceLayout
from env_worker.arrays.segment import rounded, write_segment
from env_worker.arrays.spares import IDLE_SECONDS, LEAST_BYTES, MAX_FILES, Spares
from env_worker.domain import TRAINING_ARRAY_FIELDS, Episode, Message
from tests.helpers.array_episodes import (
    NO_SPARES,
    PAGE,
    SMALL,
    body_of,
    expected_body,
    is_empty,
    keys,
    new_episode,
    new_store,
    open_segments,
    references,
)
from tests.helpers.array_plans import TracePlan, trace_plans
from tests.helpers.clock import FakeClock
from tests.helpers.pools import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from env_worker.arrays.store import ArrayStore

PLENTY = Room(2**40, 2**20)
FILES = {"memory_bytes": 8 * SMALL}


@pytest.fixture(autouse=True)
def small_files_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_BYTES", 1)


def new_file(size: int) -> int:
    """As a segment leaves it: of so many bytes, none of them zero."""
    fd = open_unshared(lambda: os.memfd_create("test", os.MFD_ALLOW_SEALING))
    os.pwrite(fd, b"\xaa" * size, 0)
    return fd


def spare_of(store: ArrayStore) -> Room:
    """What a store has spare."""
    return store._spares.taken


def keep(store: ArrayStore, name: str, **plan: Any) -> Episode:
    episode = new_episode(name, **plan)
    store.keep(episode)
    return episode


def inode_of(store: ArrayStore, key: str) -> int:
    """Of the file that the branch lies in."""
    fd = store._holdings.find(key).trace.segment._fd
    assert fd is not None
    return os.fstat(fd).st_ino


@settings(max_examples=60)
@given(plan=trace_plans)
def test_no_byte_of_what_was_in_a_file_is_in_the_next_segment(plan: TracePlan) -> None:
    """All bytes, also of the header's page and between and behind the arrays, are those of a new file."""
    found = []
    for times in (0.0, 0.5, 1.0, 2.0):
        layout = TraceLayout.of(plan.trace(), TRAINING_ARRAY_FIELDS)
        size = rounded(layout.size)
        spares = NO_SPARES
        if times:
            spares = Spares(lambda: PLENTY)
            spares.add(new_file(int(size * times)), size)
        segment = write_segment(
            layout.size, layout.write, is_intact=layout.is_intact,
            instance="a" * 32, id="b" * 32, folder=None, spares=spares, on_gone=lambda: None,
        )  # fmt: skip
        assert layout.size <= PAGE or spares.taken.segments == 0, "it was taken"
        found.append((segment.size, segment.read(0, segment.size) if segment._fd is not None else b""))
        segment.drop()
        spares.clear()
    assert all(one == found[0] for one in found[1:])


def test_the_next_episode_lies_where_a_released_one_was() -> None:
    store = new_store(**FILES)
    first = keep(store, "1", tokens=90)
    inode = inode_of(store, keys(first)[0])
    size = store.held_array_bytes
    released = store.release(keys(first))
    assert (released.bytes, store.held_array_bytes, is_empty(store)) == (size, 0, True)
    assert store.stats().held_memory_bytes == 0
    assert spare_of(store) == Room(size, 1)
    second = new_episode("2", tokens=40)
    body = expected_body(second, {"branch": 1})
    store.keep(second)
    assert inode_of(store, keys(second)[0]) == inode
    assert body_of(store, keys(second)[0]) == body
    store.close()


@pytest.mark.parametrize("how", ["discard", "fetch", "lease", "failed keep"])
def test_however_it_goes_it_is_spare(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    store = new_store(clock, lease_seconds=1, **FILES)
    if how == "failed keep":
        monkeypatch.setattr(type(store._holdings), "kept", _refuse)
        with pytest.raises(RuntimeError):
            keep(store, "1")
        assert spare_of(store) == Room(SMALL, 1)
        return
    episode = keep(store, "1")
    if how == "discard":
        store.discard(episode.id)
    elif how == "lease":
        clock.advance(1)
        store.expire()
    else:
        with store.open(keys(episode)[0], (), 0, None) as fetch:
            store.release(keys(episode))
            assert spare_of(store) == Room(0, 0)
            assert b"".join(fetch.pieces()) == expected_body(episode, references(episode)[0])
    assert (spare_of(store), is_empty(store)) == (Room(SMALL, 1), True)
    store.close()


def _refuse(*_: object) -> None:
    raise RuntimeError("not kept")


def test_what_was_offered_is_never_written_again() -> None:
    """Whoever has mapped it sees it for as long as he likes, whatever is kept meanwhile."""
    store, before = new_store(**FILES), open_segments()
    episode = keep(store, "1")
    body = expected_body(episode, references(episode)[0])
    with store.open(keys(episode)[0], (), 0, None) as fetch:
        offer = fetch.offer()
        assert offer is not None
        offset = fetch.cut.arrays[0].extents[0].offset
        length = fetch.cut.arrays[0].size_bytes
    with open(f"/proc/self/fd/{offer['fd']}", "rb") as file:
        mapped = mmap.mmap(file.fileno(), int(offer["size"]), prot=mmap.PROT_READ)
    store.release(keys(episode))
    assert (spare_of(store), open_segments()) == (Room(0, 0), before + 1), "the mapping has one"
    for number in range(4):
        keep(store, f"2{number}")
    assert mapped[offset : offset + length] == body[:length]
    mapped.close()
    store.close()


def test_what_another_process_may_write_to_is_not_offered() -> None:
    """It has opened it unasked; nor is it used again."""
    store = new_store(**FILES)
    episode = keep(store, "1")
    fd = store._holdings.find(keys(episode)[0]).trace.segment._fd
    assert fd is not None
    foreign = mmap.mmap(fd, SMALL)
    for _ in range(2):
        with store.open(keys(episode)[0], (), 0, None) as fetch:
            assert fetch.offer() is None
            assert b"".join(fetch.pieces()) == expected_body(episode, references(episode)[0])
    assert store.stats().mapped_bytes == 0
    foreign.close()
    store.release(keys(episode))
    assert spare_of(store) == Room(0, 0)


@pytest.mark.parametrize("recycled", [False, True])
def test_what_another_process_has_written_to_is_not_offered(recycled: bool) -> None:
    """By a descriptor that it has opened unasked, also of an earlier episode: the stream's checksum tells.
    Nor is it used again."""
    store = new_store(**FILES)
    episode = keep(store, "1", branches=3)
    fd = store._holdings.find(keys(episode)[0]).trace.segment._fd
    foreign = os.dup(fd or 0)
    if recycled:
        store.release(keys(episode))
        episode = keep(store, "2", branches=3)
    first, second = keys(episode)[:2]
    with store.open(second, (), 0, None) as fetch:
        offset = fetch.cut.arrays[0].extents[-1].offset
    os.pwrite(foreign, bytes([store._holdings.find(first).trace.segment.read(offset, 1)[0] ^ 1]), offset)
    for key, broken in ((first, False), (second, True)):
        with store.open(key, (), 0, None) as fetch:
            assert fetch.offer() is None
            found = google_crc32c.value(b"".join(fetch.pieces()))
            assert (found != fetch.cut.body_crc32c) is broken
    os.close(foreign)
    store.release(keys(episode))
    assert (spare_of(store), store.stats().mapped_bytes) == (Room(0, 0), 0)


def test_what_lies_on_a_disk_is_never_spare(tmp_path: Path) -> None:
    store, before = new_store(memory_bytes=0, spill_dir=tmp_path), open_segments()
    store.release(keys(keep(store, "1")))
    assert (spare_of(store), open_segments()) == (Room(0, 0), before)


def test_memory_is_given_back_within_seconds() -> None:
    """By the tick that looks at leases, also where there is no lease."""
    clock, before = FakeClock(), open_segments()
    store = new_store(clock, **FILES)
    store.release([key for number in range(4) for key in keys(keep(store, str(number)))])
    assert open_segments() - before == 4
    clock.advance(IDLE_SECONDS)
    assert store.expire() == 0
    assert (open_segments(), spare_of(store)) == (before, Room(0, 0))


def test_a_closed_store_has_none() -> None:
    store, before = new_store(**FILES), open_segments()
    store.release(keys(keep(store, "1")))
    held = keep(store, "2", tokens=200)
    fetch = store.open(keys(held)[0], (), 0, None)
    store.close()
    assert open_segments() - before == 1
    fetch.close()
    assert (open_segments(), spare_of(store)) == (before, Room(0, 0))


def test_no_keep_is_spilled_or_refused_for_their_sake(tmp_path: Path) -> None:
    large = new_episode("5", tokens=700)
    limit = rounded(TraceLayout.of(large.traces[0], TRAINING_ARRAY_FIELDS).size)
    store = new_store(memory_bytes=limit, spill_dir=tmp_path, spill_bytes=limit)
    count = limit // SMALL
    store.release([key for number in range(count) for key in keys(keep(store, str(number)))])
    assert spare_of(store) == Room(count * SMALL, count)
    for reservation in [store.reserve() for _ in range(2 * count)]:
        reservation.close()
    store.keep(large)
    stats = store.stats()
    assert (stats.held_memory_bytes, stats.spilled_episodes, spare_of(store)) == (limit, 0, Room(0, 0))
    store.release(keys(large))
    keep(store, "6")
    assert spare_of(store).bytes + store.stats().held_memory_bytes <= limit
    store.close()


@pytest.mark.parametrize("spilled", [False, True])
def test_no_keep_is_refused_a_descriptor_for_their_sake(
    spilled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "room_for_segments", lambda: 3)
    store, before = new_store(memory_bytes=3 * SMALL, spill_dir=tmp_path), open_segments()
    store.release([key for number in range(3) for key in keys(keep(store, str(number)))])
    assert spare_of(store).segments == 3
    kept = [keep(store, str(number), tokens=900 if spilled else 3) for number in range(10, 13)]
    assert store.stats().spilled_episodes == 3 * spilled
    assert open_segments() - before == 3
    with pytest.raises(ArrayBudgetExceededError, match="3 segments"):
        keep(store, "13")
    assert len(kept) == 3
    store.close()
    assert open_segments() == before


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("pwritev", errno.ENOMEM),
        ("pwritev", errno.ENOSPC),
        ("memfd_create", errno.EMFILE),
        ("open", errno.EMFILE),
    ],
)
def test_a_system_without_room_gets_theirs(
    call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(memory_bytes=5 * SMALL, spill_dir=tmp_path)
    store.release([key for number in range(3) for key in keys(keep(store, str(number)))])
    real = getattr(os, call)

    def refuse(*arguments: Any, **rest: Any) -> Any:
        if spare_of(store).segments:
            raise OSError(number, os.strerror(number))
        return real(*arguments, **rest)

    monkeypatch.setattr(os, call, refuse)
    tokens = {"pwritev": 3, "memfd_create": 400, "open": 1200}[call]
    episode = keep(store, "9", tokens=tokens)
    assert spare_of(store) == Room(0, 0)
    assert store.stats().spilled_episodes == (call == "open")
    assert body_of(store, keys(episode)[0]) == expected_body(episode, references(episode)[0])
    store.close()


@pytest.mark.parametrize(
    ("call", "number"), [("pwritev", errno.ENOMEM), ("memfd_create", errno.EMFILE), ("open", errno.EMFILE)]
)
def test_keeps_that_are_refused_at_the_same_moment_all_get_theirs(
    call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them frees all, and the others find none."""
    store = new_store(memory_bytes=0 if call == "open" else 2**24, spill_dir=tmp_path)
    other = new_store(memory_bytes=2**24)
    real, both, asked = getattr(os, call), threading.Barrier(3), threading.local()

    def refuse(*arguments: Any, **rest: Any) -> Any:
        if not hasattr(asked, "once"):
            asked.once = True
            if both.wait(10) == 0:
                other.release([key for episode in old for key in keys(episode)])
            both.wait(10)
            raise OSError(number, os.strerror(number))
        return real(*arguments, **rest)

    old = [keep(other, str(number)) for number in range(3)]
    new = [new_episode(f"1{number}", tokens=900) for number in range(3)]
    with monkeypatch.context() as patch, ThreadPoolExecutor(3) as threads:
        patch.setattr(os, call, refuse)
        list(threads.map(store.keep, new, timeout=20))
    assert spare_of(store) == Room(0, 0)
    for episode in new:
        assert body_of(store, keys(episode)[0]) == expected_body(episode, references(episode)[0])
    store.close()


def test_a_keep_gets_what_another_store_of_the_process_has_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `set_episode_hook`. Nor are there more of them where there are more stores."""
    before, old, new = open_segments(), new_store(), new_store()
    for store in (old, new):
        kept = [keep(store, f"{number}") for number in range(MAX_FILES)]
        store.release([key for episode in kept for key in keys(episode)])
    assert open_segments() - before == MAX_FILES
    monkeypatch.setattr(module, "MAX_FILES", 0)
    inode = os.fstat(module._HERE.files[-1].fd).st_ino
    episode = keep(new, "a")
    assert inode_of(new, keys(episode)[0]) == inode
    real = os.memfd_create

    def refuse(*arguments: Any) -> int:
        if open_segments() - before > 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(*arguments)

    monkeypatch.setattr(os, "memfd_create", refuse)
    keep(new, "b", tokens=900)
    assert (spare_of(old), open_segments() - before) == (Room(0, 0), 2)
    new.close()
    old.close()


def test_a_trace_without_arrays_takes_room_from_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "room_for_segments", lambda: 8)
    store = new_store(**FILES)
    store.release([key for number in range(8) for key in keys(keep(store, str(number)))])
    assert spare_of(store) == Room(8 * SMALL, 8)
    for number in range(8):
        episode = Episode(f"{number:032}", "test", {})
        episode.new_trace().add_node(Message("user"), range(3))
        store.keep(episode)
        spare = spare_of(store)
        assert spare.bytes + store.held_array_bytes <= 8 * SMALL
        assert spare.segments == 8 - (number + 1)
    store.close()


def test_many_threads_keep_fetch_and_release_within_the_budget() -> None:
    """Of any size, so that files are cut and grow. Every fetch gives the right bytes, and nothing is left."""
    limit, before = 40 * SMALL, open_segments()
    store = new_store(memory_bytes=limit)
    wrong: list[str] = []

    def work(seed: int) -> int:
        rng, reused = np.random.default_rng(seed), 0
        for number in range(25):
            episode = new_episode(f"{seed}x{number}", tokens=int(rng.integers(1, 900)))
            body = expected_body(episode, {"branch": 1})
            reused += spare_of(store).segments > 0
            try:
                store.keep(episode)
            except ArrayBudgetExceededError:
                continue
            key = keys(episode)[0]
            with store.open(key, (), 0, None) as fetch:
                if number % 5 == 0:
                    fetch.offer()
                if b"".join(fetch.pieces()) != body:
                    wrong.append(key)
                store.release([key])
                if b"".join(fetch.pieces(999)) != body:
                    wrong.append(key)
        return reused

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4), timeout=30)), "some lay where others had been"
    assert not wrong
    spare = spare_of(store)
    assert spare.bytes == sum(os.fstat(file.fd).st_blocks * 512 for file in module._HERE.files) <= limit
    assert is_empty(store)
    store.close()
    assert open_segments() == before


def test_episodes_of_that_size_are_recycled_without_any_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_BYTES", LEAST_BYTES)
    store, found = new_store(), set()
    for number in range(3):
        episode = Episode(f"{number:032}", "test", {})
        episode.new_trace().add_node(
            Message("user"), range(9000), routed_experts=np.full((9000, 16, 8), number + 1, np.uint8)
        )
        store.keep(episode)
        assert body_of(store, keys(episode)[0]) == bytes([number + 1]) * 9000 * 128
        found.add(inode_of(store, keys(episode)[0]))
        store.release(keys(episode))
    assert (len(found), spare_of(store).segments) == (1, 1)
    store.close()


FORKING = """
import os
from env_worker.arrays import spares
from tests.helpers.array_episodes import PAGE, keys, new_episode, new_store, open_segments

spares.LEAST_BYTES = 1
before = open_segments()
store, held, released = new_store(), new_episode("1"), new_episode("2")
store.keep(held)
store.keep(released)
store.release(keys(released))
there = open_segments() - before
with spares._HERE.lock:
    if (child := os.fork()) == 0:
        left = open_segments() - before, store._spares.taken.segments
        others = [os.memfd_create("other") for _ in range(2)]
        store.discard(held.id)
        taken = store._spares.take(2 * PAGE)
        sizes = [os.fstat(fd).st_size for fd in others]
        os._exit((left, taken, sizes) != ((0, 0), None, [0, 0]))
print(there, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), open_segments() - before)
"""


def test_a_forked_child_has_none() -> None:
    """Nor does it close, or cut, what has their numbers there. Whoever has the lock when it is forked."""
    command = [sys.executable, "-W", "ignore", "-c", FORKING]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["2", "0", "2"]
