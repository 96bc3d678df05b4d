"""WatchPool of a broker: what it shows, to whom, how often, and how it ends."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest
from envtrio.v1 import pool_service_pb2

from env_broker.pool_servicer import MAX_WATCHERS, PoolServicer
from env_broker.status import Refusal
from tests.helpers.clock import FakeClock
from tests.helpers.pool_watch import counters_add_up, state, states, watcher
from tests.helpers.raw_client import connected, message, until_queued
from tests.helpers.scripted_worker import Abort, Admit, Hang, Reach, ScriptedWorker, Send, Wait
from tests.helpers.stub_client import OPTIONS, new_id, reason_of


async def test_workers_by_state_with_their_load() -> None:
    async with (
        connected(max_queue=9) as (broker, client),
        watcher(broker.address) as pool,
        ScriptedWorker("a", "b", slots=1) as one,
        ScriptedWorker("a", slots=3) as two,
    ):
        watch = pool.watch()
        empty = await watch.next()
        assert (list(empty.workers), empty.queued_runs, empty.max_queued_runs) == ([], 0, 9)
        assert set(empty.counters) == {"runs", "replied", "cancelled", "failed", "refused", "workers_lost"}
        assert abs(time.time() - empty.taken_at.ToNanoseconds() / 1e9) < 10
        began = time.time()
        lease = await one.register(broker.address)
        ready = (await watch.until(lambda view: states(view) == ["READY"])).workers[0]
        assert (ready.instance, ready.address) == (one.instance, one.address)
        assert (list(ready.environments), ready.running, ready.max_concurrent_runs) == (["a", "b"], 0, 1)
        assert began - 1 <= ready.registered_at.ToNanoseconds() / 1e9 <= time.time() + 1
        assert (ready.detail, ready.local_slot) == ("", "")

        go, runs = asyncio.Event(), [new_id(), new_id()]
        for run in runs:
            one.script(run, Admit(), Wait(go), Send(message("reply")))
        calls = [asyncio.create_task(client.run(run, environment="b")) for run in runs]
        await until_queued(broker, 1)
        await lease.beat(running=1, open_windows=3, held_arrays=2, held_array_bytes=5 * 2**40)
        busy = await watch.until(lambda view: view.queued_runs and view.workers[0].open_windows)
        assert busy.workers[0].running == 1
        assert (busy.workers[0].open_windows, busy.workers[0].held_array_bytes) == (3, 5 * 2**40)
        go.set()
        assert [code for _, code, _ in await asyncio.gather(*calls)] == ["OK", "OK"]
        rest = await watch.until(lambda view: view.counters["replied"] == 2)
        assert rest.workers[0].running == rest.queued_runs == 0

        await lease.beat(draining=True)
        second = await two.register(broker.address, environments=[])
        view = await watch.until(lambda view: len(view.workers) == 2)
        assert states(view) == ["DRAINING", "LOADING"]
        assert [worker.detail for worker in view.workers] == [
            "it takes no new runs",
            "its environments are loading",
        ]
        await lease.leave()
        await watch.until(lambda view: states(view) == ["LOADING"])
        await second.beat(draining=True)
        await second.leave()
        view = await watch.until(lambda view: not view.workers)
        assert view.counters["workers_lost"] == 0  # they said goodbye


async def test_a_lost_worker_is_shown_for_a_while_and_not_when_it_is_back() -> None:
    clock = FakeClock()
    async with (
        connected(clock) as (broker, client),
        watcher(broker.address) as pool,
        ScriptedWorker() as worker,
    ):
        lease = await worker.register(broker.address)
        run = new_id()
        admitted = asyncio.Event()
        worker.script(run, Admit(), Reach(admitted), Hang())
        call = asyncio.create_task(client.run(run))
        await admitted.wait()
        await lease.beat(open_windows=3)
        await lease.close()
        assert (await call)[2] == "WORKER_LOST"
        lost = await pool.watch().next()
        assert states(lost) == ["LOST"]
        assert lost.workers[0].instance == worker.instance
        assert lost.workers[0].detail == "it was lost: its stream broke"
        assert (lost.workers[0].running, lost.workers[0].open_windows) == (0, 0)
        assert (lost.counters["workers_lost"], lost.counters["failed"]) == (1, 1)
        counters_add_up(lost)
        clock.advance(59)
        assert states(await pool.watch().next()) == ["LOST"]
        again = await worker.register(broker.address)
        assert worker.instance in [
            shown.instance for shown in (await pool.watch().next()).workers if state(shown) != "LOST"
        ]
        await again.close()
        async with asyncio.timeout(30):
            # Each time anew: between the views of one watcher lies a time of this clock, which stands still.
            while states(await pool.watch().next()) != ["LOST"]:
                pool.hang_up()
        clock.advance(60)
        assert states(await pool.watch().next()) == []


async def test_an_end_of_the_stream_is_a_goodbye_only_of_a_worker_that_drains() -> None:
    """As gRPC shows some streams that broke: those of a killed worker may end so."""
    async with (
        connected() as (broker, _),
        watcher(broker.address) as pool,
        ScriptedWorker() as dead,
        ScriptedWorker() as stopping,
    ):
        watch = pool.watch()
        lease, other = await dead.register(broker.address), await stopping.register(broker.address)
        await lease.leave()
        await other.beat(draining=True)
        await other.leave()
        view = await watch.until(lambda view: states(view) == ["LOST"])
        assert (view.workers[0].instance, view.counters["workers_lost"]) == (dead.instance, 1)
        assert view.workers[0].detail == "it was lost: its stream broke"


async def test_every_run_is_counted_once() -> None:
    async with (
        connected() as (broker, client),
        watcher(broker.address) as pool,
        ScriptedWorker() as worker,
    ):
        await worker.register(broker.address)
        ends = {
            "replied": (Admit(), Send(message("reply"))),
            "cancelled": (Abort(grpc.StatusCode.CANCELLED, "CANCEL_REQUESTED"),),
            "failed": (Admit(), Abort(grpc.StatusCode.INTERNAL, "HOOK_FAILED")),
            "refused": (Abort(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_TASK"),),
        }
        for steps in ends.values():
            run = new_id()
            worker.script(run, *steps)
            await client.run(run)
        await client.run("no id")  # refused
        await client.read_all(client.run_bytes(b"\xff"))  # refused
        await client.run(new_id(), environment="nowhere")  # refused
        hanging, reached = new_id(), asyncio.Event()
        worker.script(hanging, Admit(), Reach(reached), Hang())
        call = client.start(hanging)
        await reached.wait()
        view = await pool.watch().next()
        assert view.counters["runs"] == 8
        assert {name: view.counters[name] for name in ends} == {**dict.fromkeys(ends, 1), "refused": 4}
        call.cancel()  # cancelled: its caller is gone
        late = new_id()
        worker.script(late, Admit(), Hang())
        assert (await client.run(late, timeout=0.2))[1] == "DEADLINE_EXCEEDED"  # as well
        watch = pool.watch()
        counters_add_up(await watch.until(lambda view: view.counters["cancelled"] == 3))


@pytest.mark.parametrize("millis", [1, 99, 3_600_001, 2**32 - 1])
async def test_a_silly_interval_is_refused_naming_the_limits(millis: int) -> None:
    async with connected() as (broker, _), watcher(broker.address) as pool:
        code, reason, error = await pool.watch(millis).status()
        assert (code, reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
        assert str(millis) in (error.details() or "")
        assert "100 and 3600000" in (error.details() or "")


async def test_another_generation_is_refused() -> None:
    async with connected() as (broker, _), watcher(broker.address) as pool:
        code, reason, _ = await pool.watch(generation=2).status()
        assert (code, reason) == ("FAILED_PRECONDITION", "PROTOCOL_GENERATION")


async def test_what_is_no_request_is_refused() -> None:
    async with (
        connected() as (broker, _),
        grpc.aio.insecure_channel(broker.address, options=OPTIONS) as channel,
    ):
        call = channel.unary_stream("/envtrio.v1.PoolService/WatchPool")(b"\xff")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call.read()
        assert reason_of(error.value) == "INVALID_REQUEST"


async def test_so_many_may_watch_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (broker, _), watcher(broker.address) as pool:
        monkeypatch.setattr(broker.observer.servicer, "_limit", 2)
        first, second = pool.watch(), pool.watch()
        await first.next()
        await second.next()
        code, reason, error = await pool.watch().status()
        assert (code, reason) == ("RESOURCE_EXHAUSTED", "TABLE_FULL")
        assert "2 watch the pool, the limit is 2" in (error.details() or "")
        assert "RetryInfo" in str(error.trailing_metadata())
        first.cancel()
        async with asyncio.timeout(10):
            while True:
                third = pool.watch()
                try:
                    await third.next()
                    break
                except grpc.aio.AioRpcError:
                    continue


async def test_a_stopping_broker_ends_its_watchers() -> None:
    async with connected() as (broker, _), watcher(broker.address) as pool:
        watch = pool.watch()
        await watch.next()
        ended = asyncio.create_task(watch.status())
        await broker.stop()
        assert (await ended)[:2] == ("UNAVAILABLE", "DRAINING")


async def test_a_watcher_that_reads_nothing_does_not_hold_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    full, sent = asyncio.Event(), 0

    def view() -> pool_service_pb2.WatchPoolResponse:
        """Another one each time, and so large that only the first few fit between the two."""
        nonlocal sent
        sent += 1
        if sent == 2:
            full.set()
        lines = pool_service_pb2.WorkerView(detail="x" * 2**20)
        return pool_service_pb2.WatchPoolResponse(workers=[lines], queued_runs=sent)

    async with connected() as (broker, _), watcher(broker.address) as pool:
        monkeypatch.setattr(broker.observer.servicer._shared, "_view", view)
        watch = pool.watch()
        await watch.next()
        await full.wait()
        async with asyncio.timeout(5):
            await broker.stop()
        assert (await watch.status())[0] == "UNAVAILABLE"


class Reader:
    """A watcher's context, which takes a view when the test lets it."""

    def __init__(self) -> None:
        self.taken: asyncio.Queue[int] = asyncio.Queue()
        self.ready = asyncio.Semaphore(0)

    async def write(self, view: bytes) -> None:
        await self.ready.acquire()
        self.taken.put_nowait(pool_service_pb2.WatchPoolResponse.FromString(view).queued_runs)

    async def next(self) -> int:
        """Take a view."""
        self.ready.release()
        return await asyncio.wait_for(self.taken.get(), 10)

    async def abort(self, code: grpc.StatusCode, *_: object) -> None:
        raise EOFError(code.name)


async def test_a_reader_that_is_slow_misses_views_and_gets_the_newest() -> None:
    """And what has not changed is not sent again, nor anything sooner than the interval."""
    clock, reader, queued, asked, began = FakeClock(), Reader(), [0], 0, asyncio.Event()

    def view() -> pool_service_pb2.WatchPoolResponse:
        nonlocal asked
        asked += 1
        began.set()
        return pool_service_pb2.WatchPoolResponse(queued_runs=queued[0])

    servicer = PoolServicer(view, clock)
    request = pool_service_pb2.WatchPoolRequest(protocol_generation=1, min_interval_millis=2_000)
    watching = asyncio.create_task(servicer.watch(request.SerializeToString(), reader))  # type: ignore[arg-type]
    await began.wait()
    for queued[0] in range(1, 10):
        clock.advance(10)
        await asyncio.sleep(0)
    assert asked == 1  # the next one is made when this one was written
    assert await reader.next() == 0
    await clock.sleepers(1)
    clock.advance(1.9)
    await asyncio.sleep(0)
    assert asked == 1
    clock.advance(0.1)
    assert await reader.next() == 9
    await clock.sleepers(1)
    for seconds in (2, 1, 1, 1):
        clock.advance(seconds)
        await clock.sleepers(1)
    assert reader.taken.empty()
    queued[0] = 11
    clock.advance(1)  # a change is seen within a second, whatever the interval
    assert await reader.next() == 11
    servicer.close(Refusal("DRAINING", "the end"))
    with pytest.raises(EOFError, match="UNAVAILABLE"):
        await watching


async def test_a_view_that_is_on_its_way_is_written_before_the_status() -> None:
    """gRPC takes no status beside a write, and the watcher would not hear why its call ended."""
    reader, began = Reader(), asyncio.Event()

    def view() -> pool_service_pb2.WatchPoolResponse:
        began.set()
        return pool_service_pb2.WatchPoolResponse(queued_runs=7)

    servicer = PoolServicer(view, FakeClock())
    request = pool_service_pb2.WatchPoolRequest(protocol_generation=1)
    watching = asyncio.create_task(servicer.watch(request.SerializeToString(), reader))  # type: ignore[arg-type]
    await began.wait()
    servicer.close(Refusal("DRAINING", "the end"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not watching.done()
    assert await reader.next() == 7
    with pytest.raises(EOFError, match="UNAVAILABLE"):
        await watching


async def test_watchers_share_a_view_and_a_new_one_gets_its_own() -> None:
    clock, asked = FakeClock(), 0

    def view() -> pool_service_pb2.WatchPoolResponse:
        nonlocal asked
        asked += 1
        return pool_service_pb2.WatchPoolResponse(queued_runs=asked // 8)

    servicer = PoolServicer(view, clock)
    request = pool_service_pb2.WatchPoolRequest(protocol_generation=1, min_interval_millis=100)
    readers = [Reader() for _ in range(MAX_WATCHERS)]
    watching = [
        asyncio.create_task(servicer.watch(request.SerializeToString(), reader))  # type: ignore[arg-type]
        for reader in readers
    ]
    first = [await reader.next() for reader in readers]
    assert asked == MAX_WATCHERS, "each begins with what is, not with what was a moment ago"
    assert sorted(first) == first
    for _ in range(16):
        await clock.sleepers(MAX_WATCHERS)
        for reader in readers:
            reader.ready.release()
        clock.advance(0.1)
        for _ in range(5):
            await asyncio.sleep(0)  # what it wakes is no sleeper any more
    assert asked == MAX_WATCHERS + 16
    # All have seen the last change, which came two steps ago at least.
    last = [reader.taken.get_nowait() for reader in readers for _ in range(reader.taken.qsize())]
    assert last.count(asked // 8) == MAX_WATCHERS
    servicer.close(Refusal("DRAINING", "the end"))
    ended = await asyncio.gather(*watching, return_exceptions=True)
    assert {type(error) for error in ended} == {EOFError}
