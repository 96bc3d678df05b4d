"""Whose a store is, what it reserves, and what it frees."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from env_worker.arrays.errors import (
    ArrayBudgetError,
    ArrayBudgetExceededError,
    ArrayKeepError,
    ArraysNotFoundError,
)
from env_worker.arrays.layout import TraceLayout
from env_worker.arrays.limits import ArrayLimits, Home
from env_worker.arrays.store import ArrayStore, Released
from tests.helpers.array_episodes import (
    HOME,
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

if TYPE_CHECKING:
    from pathlib import Path

    from env_worker.arrays.writer import Put

UNKNOWN = "f" * 32


def test_limits_come_from_the_worker_unless_they_were_given() -> None:
    store, limits = ArrayStore(), ArrayLimits(1000, fields=("routed_experts",))
    assert (store.home, store.limits) == (None, None)
    store.attach(HOME, limits)
    assert (store.home, store.limits, store.stats().limit_bytes) == (HOME, limits, 1000)
    own = ArrayLimits(2000)
    store = ArrayStore(own)
    store.attach(HOME, limits)
    assert (store.limits, store.stats().limit_bytes) == (own, 2000)


def test_a_store_belongs_to_one_worker() -> None:
    store = new_store()
    store.attach(HOME, ArrayLimits(1))
    with pytest.raises(ValueError, match=r"worker a1a1a1a1 at 127\.0\.0\.1:7001, .*b2b2b2b2 at"):
        store.attach(Home("b2" * 16, "127.0.0.1:7002"), ArrayLimits(1))
    assert store.home == HOME
    for instance in ("short", "é" * 32):
        with pytest.raises(ValueError, match="32 ASCII"):
            ArrayStore().attach(Home(instance, "x:1"), ArrayLimits(1))


def test_a_store_of_no_worker_keeps_nothing_and_holds_up_no_run() -> None:
    store, episode = ArrayStore(), new_episode()
    reservation = store.reserve()
    with pytest.raises(RuntimeError, match="belong to no worker yet"):
        store.keep(episode)
    store.attach(HOME, ArrayLimits(SMALL))
    reservation.close()
    assert store.stats().reservations == 0
    assert store.release([UNKNOWN]) == Released(0, 1, 0)
    assert store.expire() == 0
    store.keep(episode)


def test_a_spill_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    limits = ArrayLimits(1, tmp_path / "none", 1)
    with pytest.raises(ValueError, match="none cannot be used"):
        ArrayStore(limits)
    store = ArrayStore()
    with pytest.raises(ValueError, match="none cannot be used"):
        store.attach(HOME, limits)
    assert store.home is None


def test_reservations_are_refused_where_no_room_is_left_and_come_back() -> None:
    store = new_store(memory_bytes=3 * SMALL)
    episode = new_episode()
    store.keep(episode)
    first, _second = store.reserve(), store.reserve()
    with pytest.raises(ArrayBudgetError, match="one more run") as error:
        store.reserve()
    assert (error.value.value, error.value.limit) == (4 * SMALL, 3 * SMALL)
    stats = store.stats()
    assert (stats.reservations, stats.reserved_bytes, stats.refused_reservations) == (2, 2 * SMALL, 1)
    for _ in range(2):
        first.close()
    store.reserve()
    store.release(keys(episode))
    store.reserve()
    assert store.stats().reservations == 3


def test_runs_are_admitted_no_more_where_one_like_them_did_not_fit() -> None:
    store = new_store(memory_bytes=3 * SMALL)
    held = new_episode("1")
    store.keep(held)
    store.reserve().close()
    with pytest.raises(ArrayBudgetExceededError):
        store.keep(new_episode("2", traces=3))
    assert store.stats().held_bytes == SMALL
    with pytest.raises(ArrayBudgetError, match=f"one more run.* {3 * SMALL} "):
        store.reserve()
    store.release(keys(held))
    store.reserve()


def test_references_must_have_room_for_the_workers_address() -> None:
    store = ArrayStore(ArrayLimits(1))
    with pytest.raises(ValueError, match=r"takes 260 bytes, .* room for 259"):
        store.attach(Home("a1" * 16, "x" * 260), ArrayLimits(1))
    assert store.home is None


def test_a_segment_goes_with_its_last_branch() -> None:
    store, episode = new_store(), new_episode(branches=3)
    store.keep(episode)
    first, second, third = keys(episode)
    assert store.release([first, UNKNOWN, first]) == Released(1, 2, 0)
    with pytest.raises(ArraysNotFoundError):
        store.open(first, (), 0, None)
    assert body_of(store, second)
    assert store.stats().released_episodes == 0
    assert store.release(iter([second, third])) == Released(2, 0, SMALL)
    assert store.release([first, second, third]) == Released(0, 3, 0)
    assert is_empty(store)
    assert store.stats().released_episodes == 1


def test_a_fetch_under_way_holds_what_is_released_discarded_and_closed() -> None:
    for free in (
        lambda store, episode: store.release(keys(episode)),
        lambda store, episode: store.discard(episode.id),
        lambda store, episode: store.release_owner("me"),
        lambda store, episode: store.close(),
    ):
        store, episode = new_store(memory_bytes=SMALL), new_episode(owner="me")
        store.keep(episode)
        [reference] = references(episode)
        fetch = store.open(reference["key"], (), 0, None)
        free(store, episode)
        with pytest.raises(ArraysNotFoundError):
            store.open(reference["key"], (), 0, None)
        assert (store.held_arrays, store.held_array_bytes) == (1, SMALL)
        with pytest.raises((ArrayBudgetExceededError, ArrayKeepError)):
            store.keep(new_episode("1"))
        assert b"".join(fetch.pieces()) == expected_body(episode, reference)
        fetch.close()
        assert is_empty(store)


@pytest.mark.parametrize("free", ["discard", "close"])
def test_a_trace_that_only_a_fetch_holds_outlives_its_episode(free: str) -> None:
    store, episode = new_store(), new_episode(traces=2)
    store.keep(episode)
    first = references(episode)[0]
    fetch = store.open(first["key"], (), 0, None)
    store.release([first["key"]])
    if free == "discard":
        store.discard(episode.id)
    else:
        store.close()
    assert store.held_array_bytes == SMALL
    assert b"".join(fetch.pieces()) == expected_body(episode, first)
    fetch.close()
    assert is_empty(store)


def test_releasing_by_owner_leaves_others_theirs() -> None:
    store = new_store()
    mine = [new_episode(f"{number}", owner="me", branches=2) for number in range(3)]
    other, nobody = new_episode("8", owner="you"), new_episode("9")
    for episode in (*mine, other, nobody):
        store.keep(episode)
    store.release(keys(mine[0])[:1])
    assert store.release_owner("me") == Released(5, 0, 3 * SMALL)
    assert store.release_owner("me") == Released(0, 0, 0)
    assert store.held_arrays == 2
    with pytest.raises(ValueError, match="owner is empty"):
        store.release_owner("")
    assert body_of(store, keys(nobody)[0])


def test_a_discard_frees_all_and_may_come_again_or_for_nothing() -> None:
    store, episode = new_store(), new_episode(traces=2, branches=2)
    store.keep(episode)
    store.release(keys(episode)[:1])
    for _ in range(2):
        store.discard(episode.id)
    store.discard("0" * 32)
    assert is_empty(store)
    assert store.release(keys(episode)) == Released(0, 4, 0)
    stats = store.stats()
    assert (stats.discarded_episodes, stats.released_episodes) == (1, 0)


def test_what_is_discarded_while_it_is_kept_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker never does that; whoever does gets no arrays that nobody can free."""
    store, episode, write = new_store(), new_episode(), TraceLayout.write

    def discarded_meanwhile(layout: TraceLayout, put: Put) -> None:
        write(layout, put)
        store.discard(episode.id)

    monkeypatch.setattr(TraceLayout, "write", discarded_meanwhile)
    with pytest.raises(ArrayKeepError, match="discarded before"):
        store.keep(episode)
    assert is_empty(store)


def test_a_closed_store_holds_and_keeps_nothing() -> None:
    store, episode = new_store(), new_episode()
    store.keep(episode)
    for _ in range(2):
        store.close()
    assert is_empty(store)
    with pytest.raises(ArrayKeepError, match="closed"):
        store.keep(new_episode("1"))
    assert store.expire() == 0


def test_the_lock_is_free_while_bytes_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    store, held, slow = new_store(), new_episode("1"), new_episode("2")
    store.keep(held)
    begun, go_on, write = threading.Event(), threading.Event(), TraceLayout.write

    def waiting(layout: TraceLayout, put: Put) -> None:
        begun.set()
        assert go_on.wait(20)
        write(layout, put)

    monkeypatch.setattr(TraceLayout, "write", waiting)
    with ThreadPoolExecutor(1) as pool:
        keeping = pool.submit(store.keep, slow)
        assert begun.wait(20)
        assert (store.held_arrays, store.held_array_bytes) == (2, 2 * SMALL)
        assert body_of(store, keys(held)[0])
        store.release(keys(held))
        store.reserve().close()
        assert store.stats().held_episodes == 1
        go_on.set()
        keeping.result(20)
    assert body_of(store, keys(slow)[0]) == expected_body(slow, references(slow)[0])


def test_many_threads_keep_fetch_release_and_discard() -> None:
    """Every fetch gives the right bytes or finds nothing, and nothing is left."""
    store, before = new_store(memory_bytes=40 * SMALL), open_segments()
    held: list[tuple[str, bytes]] = []
    wrong: list[str] = []

    def keep_some(worker: int) -> None:
        for number in range(15):
            episode = new_episode(f"{worker}x{number}", owner=f"owner {worker}", branches=2, tokens=number)
            try:
                store.keep(episode)
            except ArrayBudgetExceededError:
                store.discard(episode.id)
                store.release_owner(f"owner {worker}")
                continue
            held.extend(
                (reference["key"], expected_body(episode, reference)) for reference in references(episode)
            )
            if number % 3 == 0:
                store.discard(episode.id)
            elif number % 3 == 1:
                store.release(keys(episode)[:1])

    def fetch_some(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            if not held:
                continue
            key, body = held[rng.integers(len(held))]
            try:
                with store.open(key, (), 0, None) as fetch:
                    if b"".join(fetch.pieces(64)) != body:
                        wrong.append(key)
            except ArraysNotFoundError:
                pass

    with ThreadPoolExecutor(8) as pool:
        work = [pool.submit(keep_some, number) for number in range(4)]
        work += [pool.submit(fetch_some, number) for number in range(4)]
        for future in work:
            future.result(30)
    assert not wrong
    for number in range(4):
        store.release_owner(f"owner {number}")
    assert is_empty(store)
    assert open_segments() == before


def test_the_age_of_the_oldest() -> None:
    now = [100.0]
    store = new_store(lambda: now[0])
    first, second = new_episode("1"), new_episode("2")
    assert store.stats().oldest_age_seconds == 0
    store.keep(first)
    now[0] += 5
    store.keep(second)
    now[0] += 2
    assert store.stats().oldest_age_seconds == 7
    store.release(keys(first))
    assert store.stats().oldest_age_seconds == 2
