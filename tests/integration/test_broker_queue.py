"""Which worker a run gets, how it waits for one, and when it does not."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tests.helpers.raw_client import connected, message, until_queued
from tests.helpers.runner_harness import Stop
from tests.helpers.scripted_worker import Abort, Hang, ScriptedWorker, Send, Wait
from tests.helpers.stub_client import new_id
from tests.helpers.worker_server import SMALL, serving_worker


@pytest.mark.parametrize("reason", ["NOT_ADMITTED", "DRAINING", "QUEUE_FULL", "ARRAY_BUDGET"])
async def test_a_refusal_before_admission_is_placed_on_another_worker(reason: str) -> None:
    run = new_id()
    is_full = reason in ("QUEUE_FULL", "ARRAY_BUDGET")
    code = grpc.StatusCode.RESOURCE_EXHAUSTED if is_full else grpc.StatusCode.UNAVAILABLE
    async with connected() as (broker, client), ScriptedWorker() as first, ScriptedWorker(slots=1) as second:
        await first.register(broker.address)
        first.script(run, Abort(code, reason))
        second.script(run, Send(message("a")))
        await second.register(broker.address, environments=[])
        lone = new_id()
        # A worker that said DRAINING is not asked again, one without room for arrays not before it beats.
        first.script(lone, Abort(code, reason), optional=reason in ("DRAINING", "ARRAY_BUDGET"))
        # Only `first` takes runs: what it refuses waits for the one that is loading.
        pending = client.start(run)
        admitted = asyncio.create_task(pending.initial_metadata())
        await first.until(lambda: run in first.runs and first.runs[run].ended)
        await until_queued(broker, 1)
        await client.cancel(new_id())  # a round trip behind what the broker has sent until now
        assert not admitted.done()
        lease = await second.register(broker.address)
        await lease.beat()
        assert await client.read_all(pending) == ([message("a")], "OK", "")
        await admitted
        await lease.leave()
        for _ in range(2):  # nothing of it happened, so its id is not spent
            assert (await client.run(lone))[1] in ("UNAVAILABLE", "RESOURCE_EXHAUSTED")


async def test_a_worker_without_room_for_arrays_is_asked_again_only_after_a_heartbeat_of_room() -> None:
    one, two, three, four = (new_id() for _ in range(4))
    async with connected() as (broker, client), ScriptedWorker() as first, ScriptedWorker() as second:
        lease = await first.register(broker.address)
        await second.register(broker.address)
        first.script(one, Abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "ARRAY_BUDGET"))
        for run in (one, two):
            second.script(run, Send(message("a")))
            assert (await client.run(run))[1] == "OK"
        assert (list(first.runs), list(second.runs)) == ([one], [one, two])
        await lease.beat(array_room_full=True)
        second.script(four, Send(message("a")))
        assert (await client.run(four))[1] == "OK"
        await lease.beat()
        first.script(three, Send(message("a")))
        assert (await client.run(three))[1] == "OK"


async def test_runs_wait_by_priority_then_in_order() -> None:
    first, *rest = [new_id() for _ in range(4)]
    go, order = asyncio.Event(), list[str]()
    async with connected() as (broker, client), ScriptedWorker(slots=1) as worker:
        await worker.register(broker.address)
        worker.script(first, Wait(go))
        calls = [asyncio.create_task(client.run(first))]
        await worker.until(lambda: first in worker.runs)
        for position, (run, priority) in enumerate(zip(rest, (0, 0, 5), strict=True)):
            worker.script(run, Send(message(run)))
            calls.append(asyncio.create_task(client.run(run, priority=priority)))
            await until_queued(broker, position + 1)
        go.set()
        assert all(outcome[1] == "OK" for outcome in await asyncio.gather(*calls))
        order = list(worker.runs)
        assert order == [first, rest[2], rest[0], rest[1]]


async def test_the_queue_is_bounded_and_a_queued_run_can_be_cancelled_or_reach_its_deadline() -> None:
    running, cancelled, late, over, go = new_id(), new_id(), new_id(), new_id(), asyncio.Event()
    async with connected(max_queue=2) as (broker, client), ScriptedWorker(slots=1) as worker:
        await worker.register(broker.address)
        worker.script(running, Wait(go))
        held = asyncio.create_task(client.run(running))
        await worker.until(lambda: running in worker.runs)
        waiting = asyncio.create_task(client.run(cancelled))
        await until_queued(broker, 1)
        expiring = asyncio.create_task(client.run(late, timeout=0.5))
        await until_queued(broker, 2)
        assert (await client.run(over))[1:] == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
        assert await client.cancel(cancelled) == "ABORTED"
        assert (await waiting)[1:] == ("CANCELLED", "CANCEL_REQUESTED")
        assert await client.cancel(cancelled) == "ABORTED"
        assert (await expiring)[1] == "DEADLINE_EXCEEDED"
        await until_queued(broker, 0)  # its client may know it a moment before the broker
        go.set()
        assert (await held)[1] == "OK"
        await broker.relay.idle()
        assert list(worker.runs) == [running]
        assert worker.cancels == []
        assert broker.pool.workers()[0].busy == 0


async def test_the_queue_is_bounded_in_bytes() -> None:
    running, waits, large, go = new_id(), new_id(), "x" * 2000, asyncio.Event()
    async with connected(max_queue_bytes=1000) as (broker, client), ScriptedWorker(slots=1) as worker:
        await worker.register(broker.address)
        worker.script(running, Wait(go))
        worker.script(waits, Send(message("a")))
        held = asyncio.create_task(client.run(running, task_json=f'"{large}"'))
        await worker.until(lambda: running in worker.runs)
        waiting = asyncio.create_task(client.run(waits, task_json=f'"{large}"'))
        await until_queued(broker, 1)  # over the limit by itself, and alone
        call = client.start(new_id())
        assert (await client.read_all(call))[1:] == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
        assert "the limit is 1000" in await call.details()
        go.set()
        assert (await held)[1] == "OK"
        assert (await waiting)[1] == "OK"
        assert broker.dispatcher.queued_bytes == 0


async def test_a_workers_queue_is_bounded_in_bytes() -> None:
    async with serving_worker(max_concurrent=1, max_queue_bytes=40) as subject:
        stop = Stop()
        running = await subject.in_keep(stop)
        waiting = subject.client.start(SMALL)
        await subject.until(lambda: subject.runner.slots.waiting == 1)  # over the limit by itself, and alone
        refused = await subject.client.run(SMALL)
        assert (refused.code, refused.reason) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
        assert (refused.metadata["limit"], refused.retry_seconds) == ("40", 1.0)
        assert "the limit is 40" in refused.message
        assert not subject.runner.accepting
        stop.go()
        assert (await running.finish()).code == (await waiting.finish()).code == "OK"
        assert subject.runner.slots.waiting_bytes == 0


async def test_a_worker_gets_the_time_that_the_queue_has_left() -> None:
    running, late, waits, go = new_id(), new_id(), new_id(), asyncio.Event()
    async with connected() as (broker, client), ScriptedWorker(slots=1) as worker:
        await worker.register(broker.address)
        worker.script(running, Wait(go))
        worker.script(waits, Send(message("a")))
        held = asyncio.create_task(client.run(running))
        await worker.until(lambda: running in worker.runs)
        waiting = asyncio.create_task(client.run(waits, timeout=4.0))
        await until_queued(broker, 1)
        # Half a second passes: another run reaches its deadline in the queue.
        assert (await client.run(late, timeout=0.5))[1] == "DEADLINE_EXCEEDED"
        await until_queued(broker, 1)
        go.set()
        assert (await held)[1] == (await waiting)[1] == "OK"
        remaining = worker.runs[waits].time_remaining
        assert remaining is not None
        assert remaining < 3.7  # gRPC may make it 3 % longer on the wire


async def test_a_queued_run_whose_caller_hangs_up_leaves_the_queue() -> None:
    running, leaving, go = new_id(), new_id(), asyncio.Event()
    async with connected() as (broker, client), ScriptedWorker(slots=1) as worker:
        await worker.register(broker.address)
        worker.script(running, Wait(go))
        held = asyncio.create_task(client.run(running))
        await worker.until(lambda: running in worker.runs)
        call = client.start(leaving)
        await until_queued(broker, 1)
        call.cancel()
        await until_queued(broker, 0)
        go.set()
        assert (await held)[1] == "OK"
        assert list(worker.runs) == [running]
        assert await client.cancel(leaving) == "ABORTED"


async def test_unknown_environments_and_empty_pools() -> None:
    async with connected() as (broker, client), ScriptedWorker("a", "b") as worker:
        assert (await client.run(new_id()))[1:] == ("UNAVAILABLE", "NO_WORKER_READY")
        lease = await worker.register(broker.address)
        call = client.start(new_id(), environment="c")
        assert (await client.read_all(call))[1:] == ("NOT_FOUND", "ENVIRONMENT_NOT_FOUND")
        assert "a, b" in await call.details()
        assert (await client.run(new_id(), environment=""))[1:] == ("INVALID_ARGUMENT", "INVALID_REQUEST")
        await lease.beat(draining=True)
        assert (await client.run(new_id(), environment="a"))[1:] == ("UNAVAILABLE", "NO_WORKER_READY")


async def test_an_empty_environment_is_the_only_one_there_is() -> None:
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker("only") as worker:
        await worker.register(broker.address)
        worker.script(run, Send(message("a")))
        assert (await client.run(run, environment=""))[1] == "OK"


async def test_stopping_ends_runs_and_tells_their_workers() -> None:
    run, queued = new_id(), new_id()
    async with ScriptedWorker(slots=1) as worker, connected() as (broker, client):
        lease = await worker.register(broker.address)
        worker.script(run, Send(message("a")), Hang())
        call = client.start(run)
        assert await call.read() == message("a")
        waiting = asyncio.create_task(client.run(queued))
        await until_queued(broker, 1)
        await broker.stop()
        assert (await client.read_all(call))[1:] == ("UNAVAILABLE", "WORKER_LOST")
        assert "may have had effects" in await call.details()
        assert (await waiting)[1:] == ("UNAVAILABLE", "DRAINING")
        assert [cancel.request_id for cancel in worker.cancels] == [run]
        assert (await lease.status())[0] == "UNAVAILABLE"
