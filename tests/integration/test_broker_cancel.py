"""Cancels find the worker that has, or just had, their run; and the broker sends its own."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from envtrio.v1 import env_service_pb2, registry_service_pb2

from tests.helpers.clock import FakeClock
from tests.helpers.raw_client import connected, message
from tests.helpers.scripted_worker import Abort, Hang, Reach, ScriptedWorker, Send, Wait, WaitCancel
from tests.helpers.stub_client import new_id

CANCELLED = Abort(grpc.StatusCode.CANCELLED, "CANCEL_REQUESTED")


@pytest.fixture(autouse=True, params=[False, True], ids=["run", "lane"])
def by_lane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the broker sends its runs to the worker in one stream, or each by a call of its own."""
    monkeypatch.setattr(ScriptedWorker, "carries_runs", request.param)
    return bool(request.param)


async def test_a_cancel_goes_to_the_worker_that_has_the_run() -> None:
    run, other, go = new_id(), new_id(), asyncio.Event()
    async with (
        connected() as (broker, client),
        ScriptedWorker(slots=1) as one,
        ScriptedWorker(slots=1) as two,
    ):
        for worker in (one, two):
            await worker.register(broker.address)
            worker.script(run, Send(message("a")), WaitCancel(), CANCELLED, optional=True)
            worker.script(other, Send(message("b")), Wait(go), optional=True)
        call, undisturbed = client.start(run), client.start(other)
        assert await call.read() == message("a")
        assert await undisturbed.read() == message("b")
        assert await client.cancel(run) == "ABORTED"
        assert await client.read_all(call) == ([], "CANCELLED", "CANCEL_REQUESTED")
        assert await client.cancel(run) == "ABORTED"  # the outcome of the first
        assert [len(worker.cancels) for worker in (one, two)] == [int(run in w.runs) for w in (one, two)]
        go.set()
        assert await client.read_all(undisturbed) == ([], "OK", "")


async def test_a_late_cancel_goes_to_the_worker_that_replied() -> None:
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Send(message("a")))
        worker.cancel_lines[run] = [env_service_pb2.CANCEL_OUTCOME_DISCARDED]
        assert (await client.run(run))[1] == "OK"
        assert await client.cancel(run) == "DISCARDED"
        assert await client.cancel(run) == "DISCARDED"
        assert len(worker.cancels) == 1


async def test_a_cancel_that_overtakes_its_run_at_the_worker_ends_it() -> None:
    run, reached, go = new_id(), asyncio.Event(), asyncio.Event()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Reach(reached), Wait(go), Send(message("reply")))
        worker.cancel_lines[run] = [
            env_service_pb2.CANCEL_OUTCOME_REMEMBERED,
            env_service_pb2.CANCEL_OUTCOME_DISCARDED,
        ]
        call = client.start(run)
        await reached.wait()
        assert await client.cancel(run) == "ABORTED"
        go.set()  # the worker replies all the same
        assert await client.read_all(call) == ([message("reply")], "CANCELLED", "CANCEL_REQUESTED")
        await worker.until(lambda: len(worker.cancels) == 2)
        assert await client.cancel(run) == "ABORTED"


async def test_a_worker_that_is_lost_while_it_is_asked() -> None:
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        lease = await worker.register(broker.address)
        worker.script(run, Send(message("a")), Hang())
        worker.cancel_lines[run] = [Hang()]
        call = client.start(run)
        assert await call.read() == message("a")
        asked = asyncio.create_task(client.cancel(run))
        await worker.until(lambda: worker.cancels)
        await lease.close()
        assert await asked == "ABORTED WORKER_LOST"
        assert (await client.read_all(call))[1:] == ("UNAVAILABLE", "WORKER_LOST")


async def test_a_workers_refusal_of_a_cancel_passes() -> None:
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Send(message("a")), Hang())
        worker.cancel_lines[run] = [Abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "TABLE_FULL")]
        call = client.start(run)
        assert await call.read() == message("a")
        assert await client.cancel(run) == "RESOURCE_EXHAUSTED TABLE_FULL"
        call.cancel()
        await worker.until(lambda: worker.runs[run].ended)


async def test_a_duplicate_that_only_the_worker_knows_can_still_be_cancelled() -> None:
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Abort(grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID"))
        assert (await client.run(run))[1:] == ("ALREADY_EXISTS", "DUPLICATE_REQUEST_ID")
        await broker.relay.idle()
        assert worker.cancels == []
        worker.cancel_lines[run] = [env_service_pb2.CANCEL_OUTCOME_DISCARDED]
        assert await client.cancel(run) == "DISCARDED"


async def test_a_caller_that_hangs_up_while_it_does_not_read() -> None:
    run, megabyte = new_id(), b"\xba\x3e" + b"\xfc\xff\x3f" + b"x" * (2**20 - 4)
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, *[Send(megabyte)] * 64, optional=True)
        call = client.start(run)
        await worker.until(lambda: run in worker.runs and worker.runs[run].sent)
        call.cancel()
        await worker.until(lambda: worker.runs[run].ended and worker.cancels)
        worker.runs[run].played = True  # as far as it could be
        assert worker.runs[run].sent < 64


async def test_a_caller_that_hangs_up_has_its_run_cancelled_at_the_worker() -> None:
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Send(message("a")), Hang())
        call = client.start(run)
        assert await call.read() == message("a")
        call.cancel()
        await worker.until(lambda: worker.runs[run].ended and worker.cancels)
        assert [cancel.request_id for cancel in worker.cancels] == [run]


async def test_a_reply_that_passed_without_its_status_is_taken_back() -> None:
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Send(message("reply")), Hang())
        worker.cancel_lines[run] = [env_service_pb2.CANCEL_OUTCOME_DISCARDED]
        call = client.start(run)
        assert await call.read() == message("reply")
        call.cancel()
        await worker.until(lambda: worker.cancels)
        await broker.relay.idle()
        await broker.errands.close(10)
        assert await client.cancel(run) == "DISCARDED"


async def test_a_cancel_that_comes_first_is_remembered() -> None:
    run, held = new_id(), new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        assert await client.cancel(run) == "REMEMBERED"
        assert await client.cancel(held) == "REMEMBERED"
        assert await client.cancel("not an id") == "INVALID_ARGUMENT INVALID_REQUEST_ID"
        assert (await client.run(run))[1:] == ("CANCELLED", "CANCEL_REQUESTED")
        reported = registry_service_pb2.HeldRun(
            request_id=held, state=registry_service_pb2.HELD_RUN_STATE_REPLIED
        )
        worker.cancel_lines[held] = [env_service_pb2.CANCEL_OUTCOME_DISCARDED]
        await worker.register(broker.address, held_runs=[reported])
        await worker.until(lambda: [cancel.request_id for cancel in worker.cancels] == [held])
        await broker.errands.close(10)
        assert await client.cancel(held) == "DISCARDED"


async def test_a_worker_that_does_not_answer_a_cancel_is_said_to_be_silent() -> None:
    run, clock = new_id(), FakeClock()
    async with connected(clock, lease_seconds=60) as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Send(message("a")), WaitCancel(), WaitCancel(), CANCELLED)
        call = client.start(run)
        assert await call.read() == message("a")
        worker.cancel_lines[run] = [Hang(), env_service_pb2.CANCEL_OUTCOME_ABORTED]
        asked = asyncio.create_task(client.cancel(run))
        await worker.until(lambda: worker.cancels)
        clock.advance(5.0)
        assert await asked == "UNAVAILABLE WORKER_SILENT"
        assert await client.cancel(run) == "ABORTED"
        await client.read_all(call)
