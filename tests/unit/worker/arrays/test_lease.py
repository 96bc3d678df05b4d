"""Arrays that a dead orchestrator never fetched."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from env_worker.arrays.errors import ArraysNotFoundError
from env_worker.arrays.layout import TraceLayout
from tests.helpers.array_episodes import SMALL, body_of, keys, new_episode, new_store
from tests.helpers.clock import FakeClock

if TYPE_CHECKING:
    from env_worker.arrays.store import ArrayStore
    from env_worker.arrays.writer import Put
    from env_worker.domain import Episode

LEASE = 10.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> ArrayStore:
    return new_store(clock, lease_seconds=LEASE)


@pytest.fixture
def episode(store: ArrayStore) -> Episode:
    episode = new_episode(owner="me", branches=2)
    store.keep(episode)
    return episode


def test_without_a_lease_nothing_ends(clock: FakeClock) -> None:
    store, episode = new_store(clock), new_episode()
    store.keep(episode)
    clock.advance(1e9)
    assert store.expire() == 0
    assert body_of(store, keys(episode)[0])


def test_what_nobody_fetched_is_freed_counted_and_logged(
    store: ArrayStore, episode: Episode, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.advance(LEASE - 0.1)
    assert store.expire() == 0
    clock.advance(0.1)
    with caplog.at_level(logging.WARNING):
        assert store.expire() == 1
        assert store.expire() == 0
    [message] = [record.getMessage() for record in caplog.records]
    assert f"episode={episode.id[:8]} owner='me' expired" in message
    assert f"({SMALL} bytes) for 10 s" in message
    assert episode.id not in message
    assert (store.held_arrays, store.held_array_bytes, store.stats().expired_episodes) == (0, 0, 1)
    with pytest.raises(ArraysNotFoundError):
        store.open(keys(episode)[0], (), 0, None)
    assert store.release_owner("me").released == 0
    store.discard(episode.id)
    assert store.stats().discarded_episodes == 0


def test_a_fetch_renews_it_for_the_whole_episode_when_it_begins_and_when_it_ends(
    store: ArrayStore, episode: Episode, clock: FakeClock
) -> None:
    clock.advance(LEASE - 1)
    fetch = store.open(keys(episode)[0], (), 0, None)
    clock.advance(5 * LEASE)
    assert store.expire() == 0  # it is under way
    fetch.close()
    clock.advance(LEASE - 1)
    assert store.expire() == 0
    assert body_of(store, keys(episode)[1])
    clock.advance(LEASE - 1)
    assert store.expire() == 0
    clock.advance(1)
    assert store.expire() == 1


def test_what_cannot_be_given_renews_nothing(store: ArrayStore, episode: Episode, clock: FakeClock) -> None:
    clock.advance(LEASE)
    with pytest.raises(ValueError, match="none of"):
        store.open(keys(episode)[0], ["x"], 0, None)
    assert store.expire() == 1


def test_a_release_of_one_branch_leaves_the_other_its_lease(
    store: ArrayStore, episode: Episode, clock: FakeClock
) -> None:
    store.release(keys(episode)[:1])
    clock.advance(LEASE)
    assert store.expire() == 1
    assert store.held_array_bytes == 0


def test_what_was_released_under_a_fetch_does_not_expire(
    store: ArrayStore, episode: Episode, clock: FakeClock
) -> None:
    fetch = store.open(keys(episode)[0], (), 0, None)
    store.release(keys(episode))
    clock.advance(LEASE)
    assert store.expire() == 0
    fetch.close()
    stats = store.stats()
    assert (stats.held_episodes, stats.released_episodes, stats.expired_episodes) == (0, 1, 0)


def test_a_keep_under_way_does_not_expire(
    store: ArrayStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, episode = TraceLayout.write, new_episode("1")

    def slowly(layout: TraceLayout, put: Put) -> None:
        clock.advance(5 * LEASE)
        assert store.expire() == 0
        write(layout, put)

    monkeypatch.setattr(TraceLayout, "write", slowly)
    store.keep(episode)
    assert store.expire() == 0  # nor is the time that it took part of its lease
    assert body_of(store, keys(episode)[0])
