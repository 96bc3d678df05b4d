"""The broker's pool of workers."""

from __future__ import annotations

import pytest

from env_broker.pool import Load, Pool, PoolError, PoolFullError, Worker

LEASE = 10.0


def add(
    pool: Pool,
    instance: str,
    *,
    lease: str = "l1",
    address: str = "",
    environments: tuple[str, ...] = ("e",),
    slots: int = 2,
    window: float = 60.0,
    now: float = 0.0,
) -> Worker:
    worker = pool.add(instance, lease, address or f"{instance}:1", environments, slots, window, now)
    assert pool.get(instance) is worker
    return worker


def take(pool: Pool, environment: str = "e") -> Worker:
    worker = pool.pick(environment)
    assert worker is not None
    pool.acquire(worker)
    return worker


def test_an_empty_pool() -> None:
    pool = Pool(lease_seconds=LEASE)
    assert pool.pick("e") is None
    assert pool.get("w") is None
    assert pool.workers() == ()
    assert pool.environments == frozenset()
    assert pool.late_cancel_seconds == 0.0


def test_least_busy_first_then_the_one_picked_longest_ago() -> None:
    pool = Pool(lease_seconds=LEASE)
    for name in ("w1", "w2", "w3"):
        add(pool, name)
    assert [take(pool).instance for _ in range(6)] == ["w1", "w2", "w3"] * 2
    assert pool.pick("e") is None
    second = pool.get("w2")
    assert second is not None
    pool.release(second)
    assert take(pool) is second


def test_busy_is_a_share_of_the_slots() -> None:
    pool = Pool(lease_seconds=LEASE)
    small, large = add(pool, "small", slots=1), add(pool, "large", slots=4)
    assert [take(pool) for _ in range(5)] == [small, large, large, large, large]


def test_a_worker_gets_only_what_it_serves() -> None:
    pool = Pool(lease_seconds=LEASE)
    add(pool, "w1", environments=("a",), window=30.0)
    b = add(pool, "w2", environments=("b",), window=90.0)
    assert pool.pick("b") is b
    assert pool.pick("c") is None
    assert pool.environments == {"a", "b"}
    assert pool.late_cancel_seconds == 90.0


def test_a_worker_whose_environment_is_loading_gets_none_until_it_says_so() -> None:
    pool = Pool(lease_seconds=LEASE)
    worker = add(pool, "w", environments=())
    assert pool.pick("e") is None
    assert pool.heartbeat("w", "l1", 1.0, environments=["e"])
    assert pool.heartbeat("w", "l1", 2.0)
    assert pool.pick("e") is worker


def test_a_lease_ends_without_heartbeats() -> None:
    pool = Pool(lease_seconds=LEASE)
    first, second = add(pool, "w1"), add(pool, "w2")
    assert pool.heartbeat("w2", "l1", 5.0)
    assert pool.expire(LEASE - 0.001) == []
    assert pool.expire(LEASE) == [first]
    assert not pool.heartbeat("w1", "l1", LEASE)
    assert pool.workers() == (second,)
    assert pool.expire(100.0) == [second]


def test_the_end_of_an_older_lease_means_nothing() -> None:
    pool = Pool(lease_seconds=LEASE)
    worker = add(pool, "w", lease="old")
    take(pool)
    pool.drain("w")
    again = add(pool, "w", lease="new", environments=("f",), slots=3, window=5.0, now=7.0)
    assert again is worker
    assert (again.busy, again.slots, again.draining, again.lease_ends) == (1, 3, False, 17.0)
    assert pool.late_cancel_seconds == 5.0
    assert not pool.heartbeat("w", "old", 8.0)
    assert pool.remove("w", "old") is None
    assert pool.remove("unknown", "new") is None
    assert pool.remove("w", "new") is worker
    assert len(pool) == 0


def test_the_same_address_with_a_new_instance_is_a_new_worker_and_gets_work() -> None:
    pool = Pool(lease_seconds=LEASE)
    old, other = add(pool, "old", address="host:1", slots=1), add(pool, "other", slots=1)
    take(pool)
    new = add(pool, "new", address="host:1", slots=1)
    assert pool.workers() == (old, other, new), "who is there is a question, until it was dialled"
    assert pool.displace("unknown") == []
    assert pool.displace("new") == [old]
    assert pool.displace("new") == []
    assert pool.workers() == (other, new)
    assert not pool.heartbeat("old", "l1", 1.0)
    pool.drain("other")
    assert take(pool) is new
    pool.release(old)
    assert (old.busy, new.busy) == (0, 1), "the old one's runs give back its slots, not the new one's"


def test_a_draining_worker_gets_none_and_stays() -> None:
    pool = Pool(lease_seconds=LEASE)
    worker = add(pool, "w")
    assert pool.drain("w")
    assert not pool.drain("unknown")
    assert pool.pick("e") is None
    assert pool.get("w") is worker


def test_slots_are_counted_strictly() -> None:
    pool = Pool(lease_seconds=LEASE)
    worker = add(pool, "w", slots=1)
    with pytest.raises(PoolError, match="0 of 1 slots taken"):
        pool.release(worker)
    pool.acquire(worker)
    with pytest.raises(PoolError, match="1 of 1 slots taken"):
        pool.acquire(worker)
    assert worker.busy == 1


def test_bad_and_too_many_workers_are_refused() -> None:
    pool = Pool(lease_seconds=LEASE, limit=1)
    with pytest.raises(ValueError, match="has 0 slots; it needs at least 1"):
        add(pool, "w", slots=0)
    add(pool, "w")
    with pytest.raises(PoolFullError, match="has 1 workers, its limit is 1"):
        add(pool, "other")
    add(pool, "w", lease="again")
    assert len(pool) == 1


def test_the_load_of_a_heartbeat_is_remembered_and_a_new_lease_knows_none() -> None:
    pool = Pool(lease_seconds=LEASE)
    worker = add(pool, "w", slots=4)
    assert (worker.load, worker.reported_at) == (Load(), None)
    pool.acquire(worker)
    load = Load(running=3, open_windows=2, held_arrays=1, held_array_bytes=10, loop_lag_millis=0.5)
    assert pool.heartbeat("w", "l1", 2.0, load=load, says="it is blocked")
    assert (worker.load, worker.reported_at, worker.foreign, worker.taken) == (load, 2.0, 2, 3)
    assert worker.says == "it is blocked"
    pool.release(worker)
    assert worker.taken == 2
    assert pool.heartbeat("w", "l1", 3.0)
    assert (worker.load, worker.reported_at, worker.taken) == (Load(), 3.0, 0)
    assert worker.says == ""
    assert pool.heartbeat("w", "l1", 4.0, load=load, says="it is blocked")
    add(pool, "w", lease="l2", slots=4, now=5.0)
    assert (worker.load, worker.reported_at, worker.foreign, worker.says) == (Load(), None, 0, "")


def test_runs_of_other_callers_make_a_worker_busy_but_are_not_counted_twice() -> None:
    pool = Pool(lease_seconds=LEASE)
    dialled, quiet = add(pool, "w1", slots=2), add(pool, "w2", slots=2)
    assert pool.heartbeat("w1", "l1", 1.0, load=Load(running=2))
    assert [take(pool), take(pool)] == [quiet, quiet]
    # It counts for the choice; only this pool's own runs take what it gives.
    assert take(pool) is dialled
    assert pool.heartbeat("w1", "l1", 2.0, load=Load(running=1))
    assert (dialled.foreign, dialled.taken) == (0, 1)
    # A heartbeat that left while the run was there, and came when it had ended.
    pool.release(dialled)
    assert pool.heartbeat("w1", "l1", 2.5, load=Load(running=1))
    assert (dialled.foreign, dialled.taken) == (0, 0)
    assert pool.heartbeat("w1", "l1", 2.7, load=Load(running=1))
    assert (dialled.foreign, dialled.taken) == (1, 1), "since then there was none of this pool"
    pool.acquire(dialled)
    # A heartbeat that left before the run arrived.
    assert pool.heartbeat("w1", "l1", 3.0, load=Load(running=0))
    assert dialled.foreign == 0


def test_a_worker_without_room_for_arrays_gets_no_runs_until_it_has_some_or_registers() -> None:
    pool = Pool(lease_seconds=LEASE)
    worker = add(pool, "w")
    assert [pool.no_room("w", said) for said in ("", "no room")] == [True, False]
    assert worker.full_because == "no room"
    assert pool.pick("e") is None
    assert not worker.open_for_runs
    assert pool.relent("w")
    assert pool.pick("e") is worker
    assert pool.no_room("w", "")
    assert worker.full_because == "it did not say why"
    assert not pool.no_room("nobody", "no room")
    assert add(pool, "w", lease="l2") is worker
    assert (worker.full_because, pool.relent("w"), pool.relent("nobody")) == ("", False, False)
