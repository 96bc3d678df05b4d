"""Slots and waiting, without a network."""

from __future__ import annotations

import asyncio

import pytest

from env_broker.dispatch import Dispatcher, Turn
from env_broker.pool import Pool, Worker
from env_broker.status import Refusal


class Prospects:
    """Workers that may come."""

    expected = False
    words = ""

    def hopeful(self) -> bool:
        return self.expected

    def detail(self) -> str:
        return self.words


class Scene:
    """A dispatcher over a pool."""

    def __init__(self, max_queue: int = 8, max_queue_bytes: int = 100) -> None:
        self.pool = Pool(lease_seconds=60)
        self.prospects = Prospects()
        self.growing: set[str] = set()
        """Environments for whose runs another worker would be started."""
        self.dispatcher = Dispatcher(
            self.pool,
            max_queue=max_queue,
            max_queue_bytes=max_queue_bytes,
            prospects=self.prospects,
            may_grow=self.growing.__contains__,
        )

    def add(self, name: str, *environments: str, slots: int = 1) -> Worker:
        self.pool.add(name, name, name, environments, slots, 60.0, 0.0)
        self.dispatcher.reconsider()
        worker = self.pool.get(name)
        assert worker is not None
        return worker

    async def wait(
        self, run: str, environment: str = "e", priority: int = 0, size: int = 0
    ) -> asyncio.Task[Worker]:
        """A run that waits."""
        queued = self.dispatcher.queued
        task = asyncio.create_task(self.dispatcher.acquire(run, environment, priority=priority, size=size))
        await asyncio.sleep(0)
        assert self.dispatcher.queued == queued + 1
        return task


async def refused(scene: Scene, environment: str = "e", run: str = "r", size: int = 0) -> Refusal:
    with pytest.raises(Refusal) as error:
        await scene.dispatcher.acquire(run, environment, size=size)
    return error.value


async def test_the_least_busy_worker_gets_the_run() -> None:
    scene = Scene()
    one, two = scene.add("1", "e", slots=2), scene.add("2", "e", slots=4)
    got = [await scene.dispatcher.acquire(str(number), "e") for number in range(6)]
    assert (got.count(one), got.count(two)) == (2, 4)
    assert got[0] is not got[1]


async def test_a_slot_that_is_given_back_goes_to_the_first_that_waits() -> None:
    scene = Scene()
    worker = scene.add("1", "e")
    await scene.dispatcher.acquire("a", "e")
    low, high = await scene.wait("low"), await scene.wait("high", priority=1)
    scene.dispatcher.release(worker)
    assert await high is worker
    assert not low.done()
    scene.dispatcher.release(worker)
    assert await low is worker
    assert worker.busy == 1


async def test_a_slot_of_a_worker_that_left_goes_to_nobody() -> None:
    scene = Scene()
    worker = scene.add("1", "e")
    scene.add("2", "e")
    for run in "ab":
        await scene.dispatcher.acquire(run, "e")
    waiting = await scene.wait("c")
    scene.pool.remove("1", "1")
    scene.dispatcher.release(worker)
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_who_leaves_at_the_moment_it_is_served_gives_its_slot_on() -> None:
    scene = Scene()
    worker = scene.add("1", "e")
    await scene.dispatcher.acquire("a", "e")
    leaving, next_one = await scene.wait("b"), await scene.wait("c")
    scene.dispatcher.release(worker)  # `leaving` has it now, and has not run yet
    leaving.cancel()
    assert await next_one is worker
    assert leaving.cancelled() or await _ended(leaving)
    assert (worker.busy, scene.dispatcher.queued) == (1, 0)


async def _ended(task: asyncio.Task[Worker]) -> bool:
    await asyncio.wait({task})
    return task.cancelled()


async def test_a_waiter_that_was_cancelled_gets_no_slot() -> None:
    scene = Scene()
    worker = scene.add("1", "e")
    await scene.dispatcher.acquire("a", "e")
    leaving, next_one = await scene.wait("b"), await scene.wait("c")
    leaving.cancel()
    scene.dispatcher.release(worker)  # before `leaving` has run
    assert await next_one is worker
    assert await _ended(leaving)
    assert worker.busy == 1


async def test_the_queue_is_bounded() -> None:
    scene = Scene(max_queue=1)
    scene.add("1", "e")
    await scene.dispatcher.acquire("a", "e")
    waiting = await scene.wait("b")
    refusal = await refused(scene)
    assert (refusal.reason, refusal.retry_after, refusal.metadata["limit"]) == ("QUEUE_FULL", 1.0, "1")
    waiting.cancel()


async def test_the_queue_is_bounded_in_bytes() -> None:
    scene = Scene(max_queue_bytes=100)
    worker = scene.add("1", "e")
    await scene.dispatcher.acquire("a", "e", size=1000)  # what does not wait is not counted
    some, more = await scene.wait("b", size=60), await scene.wait("c", size=40)
    refusal = await refused(scene, size=1)
    assert (refusal.reason, refusal.retry_after) == ("QUEUE_FULL", 1.0)
    assert (refusal.metadata["limit"], refusal.metadata["value"]) == ("100", "101")
    assert "2 runs that wait for a worker have 100 bytes, this one has 1, the limit is 100" in refusal.message
    scene.dispatcher.release(worker)
    assert await some is worker
    assert scene.dispatcher.queued_bytes == 40
    more.cancel()
    await asyncio.wait({more})
    assert scene.dispatcher.queued_bytes == 0


async def test_a_request_over_the_limit_waits_where_nothing_else_does() -> None:
    scene = Scene(max_queue_bytes=100)
    worker = scene.add("1", "e")
    await scene.dispatcher.acquire("a", "e")
    small = await scene.wait("b", size=1)
    assert (await refused(scene, size=101)).reason == "QUEUE_FULL"
    small.cancel()
    await asyncio.wait({small})
    large = await scene.wait("c", size=101)  # or it could never run while the pool is busy
    assert (await refused(scene, size=1)).reason == "QUEUE_FULL"
    scene.dispatcher.release(worker)
    assert await large is worker
    assert scene.dispatcher.queued_bytes == 0


async def test_a_worker_that_nobody_has_reached_gets_nothing_and_may_be_waited_for() -> None:
    scene = Scene()
    worker = scene.add("1", "e")
    worker.reachable = False
    waiting, unnamed = await scene.wait("a"), await scene.wait("b", "")
    worker.reachable, worker.slots = True, 2
    scene.dispatcher.reconsider()
    assert (await waiting, await unnamed) == (worker, worker)


async def test_a_worker_that_was_dialled_in_vain_is_waited_for_no_longer() -> None:
    scene = Scene()
    worker = scene.add("1", "e")
    worker.reachable = False
    waiting = await scene.wait("a")
    worker.unreachable_because = "nobody answered in 2 s"
    scene.dispatcher.reconsider()
    with pytest.raises(Refusal) as error:
        await waiting
    assert error.value.reason == "NO_WORKER_READY"
    for words in ("worker 1 cannot be reached at 1: nobody answered in 2 s", "says SERVING"):
        assert words in error.value.message
    assert not scene.dispatcher.serves_elsewhere("e", ())
    other = scene.add("2", "f")
    assert (await refused(scene)).reason == "NO_WORKER_READY"  # served, if only it could be reached
    assert (await refused(scene, "g")).reason == "ENVIRONMENT_NOT_FOUND"
    assert await scene.dispatcher.acquire("b", "") is other


async def test_many_workers_that_cannot_be_reached_are_not_all_named() -> None:
    scene = Scene()
    for number in range(5):
        worker = scene.add(str(number))
        worker.reachable, worker.unreachable_because = False, "silent"
    assert (await refused(scene)).message.count("cannot be reached") == 3


async def test_a_deadline_that_passes_in_the_queue() -> None:
    scene = Scene()
    worker = scene.add("1", "e")
    await scene.dispatcher.acquire("a", "e")
    with pytest.raises(Refusal, match="deadline"):
        await scene.dispatcher.acquire("b", "e", timeout=0)
    assert scene.dispatcher.queued == 0
    scene.dispatcher.release(worker)
    assert worker.busy == 0


async def test_what_would_wait_in_vain_is_refused() -> None:
    scene = Scene()
    scene.prospects.words = "worker 0 exited with code 2"
    nobody = await refused(scene)
    assert nobody.reason == "NO_WORKER_READY"
    assert "worker 0 exited with code 2" in nobody.message
    scene.add("1", "a", "b")
    unknown = await refused(scene)
    assert unknown.reason == "ENVIRONMENT_NOT_FOUND"
    assert "a, b" in unknown.message
    assert (await refused(scene, "")).reason == "INVALID_REQUEST"


@pytest.mark.parametrize("environment", ["e", ""])
async def test_runs_wait_for_workers_that_start_or_load(environment: str) -> None:
    scene = Scene()
    scene.prospects.expected = True
    waiting = await scene.wait("a", environment)
    loading = scene.add("1")
    scene.prospects.expected = False
    scene.dispatcher.reconsider()
    assert not waiting.done()
    scene.pool.heartbeat("1", "1", 0.0, environments=["e"])
    scene.dispatcher.reconsider()
    assert await waiting is loading


async def test_hope_that_ends_ends_the_wait() -> None:
    scene = Scene()
    scene.prospects.expected = True
    named, unnamed = await scene.wait("a"), await scene.wait("b", "")
    scene.add("1", "x", "y")
    with pytest.raises(Refusal, match="name one of: x, y"):
        await unnamed
    scene.prospects.expected = False
    scene.dispatcher.reconsider()
    with pytest.raises(Refusal, match="no worker serves"):
        await named


async def test_a_run_that_is_removed_ends_with_that_refusal() -> None:
    scene = Scene()
    scene.add("1", "e")
    await scene.dispatcher.acquire("a", "e")
    waiting = await scene.wait("b")
    refusal = Refusal("CANCEL_REQUESTED", "x")
    assert scene.dispatcher.remove("b", refusal)
    assert not scene.dispatcher.remove("b", refusal)
    with pytest.raises(Refusal) as error:
        await waiting
    assert error.value is refusal
    assert not scene.dispatcher.remove("nobody", refusal)


async def test_closing_refuses_all() -> None:
    scene = Scene()
    scene.add("1", "e")
    await scene.dispatcher.acquire("a", "e")
    waiting = await scene.wait("b")
    scene.dispatcher.close(Refusal("DRAINING", "x"))
    with pytest.raises(Refusal, match="x"):
        await waiting
    assert (await refused(scene)).reason == "DRAINING"


async def test_a_worker_that_refused_a_run_is_avoided() -> None:
    scene = Scene()
    scene.add("1", "e", slots=4)
    two = scene.add("2", "e", slots=1)
    assert await scene.dispatcher.acquire("a", "e", avoid={"1"}) is two
    assert scene.dispatcher.serves_elsewhere("e", {"1"})
    assert not scene.dispatcher.serves_elsewhere("e", {"1", "2"})
    scene.pool.drain("2")
    assert not scene.dispatcher.serves_elsewhere("e", {"1"})


async def test_a_worker_without_room_for_arrays_gets_no_runs_until_it_has_some() -> None:
    scene = Scene()
    one, two = scene.add("1", "e", slots=2), scene.add("2", "e")
    scene.dispatcher.full(one, "2 of 2 bytes are held")
    assert await scene.dispatcher.acquire("a", "e") is two
    waiting = await scene.wait("b")  # for the other, although this one has free slots
    scene.dispatcher.full(one, "again")
    assert not waiting.done()
    assert scene.pool.relent("1")
    assert not scene.pool.relent("1")
    scene.dispatcher.reconsider()
    assert await waiting is one


async def test_where_all_are_without_room_a_run_is_refused_and_so_is_what_waits() -> None:
    scene = Scene()
    one, two = scene.add("1", "e"), scene.add("2", "e")
    assert {await scene.dispatcher.acquire(name, "e") for name in "ab"} == {one, two}
    waiting = await scene.wait("c")
    scene.dispatcher.full(one, "9 of 9 bytes are held")
    await asyncio.sleep(0)
    assert not waiting.done()
    assert scene.dispatcher.serves_elsewhere("e", {"1"})
    assert not scene.dispatcher.serves_elsewhere("e", {"2"})
    scene.dispatcher.full(two, "")
    for refusal in (await refusal_of(waiting), await refused(scene), await refused(scene, "")):
        assert (refusal.reason, refusal.code.name) == ("ARRAY_BUDGET", "RESOURCE_EXHAUSTED")
        assert (refusal.retry_after, refusal.metadata) == (1.0, {"workers": "2"})
        assert "release arrays that were fetched" in refusal.message
        assert "worker 2: it did not say why" in refusal.message


async def test_a_worker_that_may_come_is_waited_for_although_the_others_have_no_room() -> None:
    scene = Scene()
    scene.dispatcher.full(scene.add("1", "e"), "full")
    scene.prospects.expected = True
    waiting = await scene.wait("a")
    two = scene.add("2", "e")
    assert await waiting is two
    scene.prospects.expected = False
    scene.dispatcher.full(two, "full")
    scene.add("3")  # its environments are loading
    loading = await scene.wait("b")
    scene.pool.add("3", "l2", "3", ["other"], 1, 60.0, 0.0)
    scene.dispatcher.reconsider()
    assert (await refusal_of(loading)).reason == "ARRAY_BUDGET"


async def test_where_the_pool_may_grow_a_run_waits_although_all_are_without_room() -> None:
    scene = Scene()
    one = scene.add("1", "e", "f", slots=2)
    scene.dispatcher.full(one, "full")
    assert (await refused(scene)).reason == "ARRAY_BUDGET"
    scene.growing.add("e")
    assert scene.dispatcher.serves_elsewhere("e", {"1"})
    assert not scene.dispatcher.serves_elsewhere("f", {"1"})
    waiting = [await scene.wait(run) for run in "ab"]
    assert (await refused(scene, "f")).reason == "ARRAY_BUDGET"
    assert [scene.dispatcher.stranded(names) for names in (["e"], ["f"], [])] == [2, 0, 0]
    scene.add("2", "f")
    assert scene.dispatcher.stranded(["e", "f"]) == 2
    three = scene.add("3", "e")
    assert await waiting[0] is three
    assert scene.dispatcher.stranded(["e"]) == 0, "for one that is busy it waits as ever"
    scene.dispatcher.full(three, "full")
    assert scene.dispatcher.stranded(["e"]) == 1
    scene.growing.clear()
    scene.dispatcher.reconsider()
    assert (await refusal_of(waiting[1])).reason == "ARRAY_BUDGET"


async def test_growth_is_no_hope_for_a_run_that_a_worker_with_room_declined() -> None:
    scene = Scene()
    scene.add("1", "e")
    scene.growing.add("e")
    assert not scene.dispatcher.serves_elsewhere("e", {"1"})


async def test_a_run_that_was_declined_keeps_its_place_although_the_queue_is_full_by_now() -> None:
    scene = Scene(max_queue=2, max_queue_bytes=20)
    one, two = scene.add("1", "e", slots=2), scene.add("2", "e")
    scene.dispatcher.full(one, "full")
    assert await scene.dispatcher.acquire("busy", "e") is two
    turns = [Turn(), Turn()]
    early = [
        asyncio.create_task(scene.dispatcher.acquire(run, "e", size=10, turn=turn))
        for run, turn in zip("ab", turns, strict=True)
    ]
    await asyncio.sleep(0)
    scene.pool.relent("1")
    scene.dispatcher.reconsider()
    assert [await task for task in early] == [one, one]
    late = [await scene.wait(run, size=10) for run in "cd"]
    scene.dispatcher.full(one, "full")
    early = [
        asyncio.create_task(scene.dispatcher.acquire(run, "e", size=10, avoid={"1"}, turn=turn))
        for run, turn in zip("ba", reversed(turns), strict=True)
    ]
    await asyncio.sleep(0)
    for _ in range(2):
        scene.dispatcher.release(one)
    assert (scene.dispatcher.queued, scene.dispatcher.queued_bytes) == (4, 40)
    assert (await refused(scene, run="z")).reason == "QUEUE_FULL"
    for task in (early[1], early[0], *late):
        scene.dispatcher.release(two)
        assert await task is two
    assert scene.dispatcher.queued == 0


async def refusal_of(waiting: asyncio.Task[Worker]) -> Refusal:
    with pytest.raises(Refusal) as error:
        await waiting
    return error.value
