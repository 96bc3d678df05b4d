"""The broker's lane to a worker: when runs go by it, and when each goes by a call of its own."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from env_broker import worker_lane
from tests.helpers.lane_scenes import by_run, by_the_lane
from tests.helpers.raw_client import connected, message
from tests.helpers.scripted_worker import Abort, Admit, ScriptedWorker, Send
from tests.helpers.stub_client import new_id

MIB = 2**20
SECONDS = 10.0


@pytest.fixture(autouse=True)
def lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedWorker, "carries_runs", True)


async def test_many_runs_go_by_one_stream() -> None:
    runs = [new_id() for _ in range(50)]
    async with connected() as (broker, client), ScriptedWorker(slots=50) as worker:
        await worker.register(broker.address)
        for run in runs:
            worker.script(run, Admit(), *[Send(message(f"{run} {n}")) for n in range(5)])
        results = await asyncio.gather(*(client.run(run) for run in runs))
        for run, (got, code, reason) in zip(runs, results, strict=True):
            expected = b"".join(message(f"{run} {n}") for n in range(5))
            assert (b"".join(got), code, reason) == (expected, "OK", "")
        [stream] = worker.sessions.streams
        assert stream.numbers == list(range(1, 51))
        [opening] = worker.sessions.opens
        assert (len(opening.session_id), opening.epoch) == (32, 1)
        assert opening.session_id != broker.instance


async def test_a_worker_without_the_capability_gets_each_run_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ScriptedWorker, "carries_runs", False)
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        await by_run(worker, client, 0)


async def test_a_large_request_goes_by_itself() -> None:
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        await by_run(worker, client, 0, task_json="x" * MIB)
        await by_the_lane(worker, client, 1)
        await by_run(worker, client, 1, task_json="x" * MIB)


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
        None,  # it says nothing
    ],
)
async def test_where_it_cannot_be_opened_runs_go_by_themselves(
    code: grpc.StatusCode | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        if code is None:
            monkeypatch.setattr(worker_lane, "OPEN_SECONDS", 0.05)
            worker.sessions.opening.clear()
        else:
            worker.sessions.refusals = [code]
        await by_run(worker, client, 1)
        await by_run(worker, client, 1)  # it is not tried again at once
        worker.sessions.opening.set()
        monkeypatch.setattr(worker_lane, "OPEN_SECONDS", SECONDS)
        [link] = broker._links.values()
        link.lane._pause_ends = 0.0
        await by_the_lane(worker, client, 2)


async def test_what_is_opened_without_the_capability_carries_nothing() -> None:
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.sessions.capabilities = ["sessions"]
        await by_run(worker, client, 1)


async def test_runs_wait_while_it_is_opened_and_may_leave_meanwhile() -> None:
    runs = [new_id() for _ in range(3)]
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.sessions.opening.clear()
        worker.script(runs[0], Send(message("a")))
        waits, leaves = client.start(runs[0]), client.start(runs[1])
        assert (await client.run(runs[2], timeout=0.2))[1] == "DEADLINE_EXCEEDED"
        leaves.cancel()
        # Cancels of both are sent, as nobody here knows that the worker has never heard of the runs.
        await worker.until(lambda: {c.request_id for c in worker.cancels} >= {runs[1], runs[2]})
        worker.sessions.opening.set()
        assert await client.read_all(waits) == ([message("a")], "OK", "")
        assert set(worker.runs) == {runs[0]}
        assert worker.sessions.streams[0].numbers == [1]


async def test_a_run_that_is_declined_is_placed_elsewhere() -> None:
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker() as one, ScriptedWorker() as two:
        for worker, code in ((one, "QUEUE_FULL"), (two, "QUEUE_FULL")):
            await worker.register(broker.address)
            worker.script(run, Abort(grpc.StatusCode.RESOURCE_EXHAUSTED, code), optional=True)
        assert (await client.run(run, task_json="x" * 1000))[1:] == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
        assert [len(w.runs[run].request.task_json) for w in (one, two)] == [1000, 1000]
        assert [w.cancels for w in (one, two)] == [[], []]


async def test_a_run_that_ends_before_any_data_is_passed_on() -> None:
    run, refused = new_id(), new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run)
        worker.script(refused, Abort(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_TASK"))
        assert await client.run(run) == ([], "OK", "")
        assert await client.run(refused) == ([], "INVALID_ARGUMENT", "INVALID_TASK")
