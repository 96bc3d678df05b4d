"""What ends the broker's lane to a worker, what becomes of its runs, and what a worker cannot do to it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from envtrio.v1 import env_service_pb2 as pb

from env_broker.held_request import HeldRequest
from env_broker.lane_run import CREDIT_BYTES
from env_broker.link import WorkerLink
from env_broker.pool import Worker
from env_broker.session_names import SessionNames
from env_broker.worker_lane import WorkerLane
from env_broker.worker_messages import UnreadableError, parsed
from tests.helpers.lane_scenes import by_the_lane, ends, started
from tests.helpers.raw_client import connected, run_request
from tests.helpers.scripted_worker import Admit, Hang, ScriptedWorker, Send, Wait
from tests.helpers.stub_client import new_id

MIB = 2**20
SECONDS = 10.0
LOST = ("UNAVAILABLE", "WORKER_LOST")


@pytest.fixture(autouse=True)
def lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedWorker, "carries_runs", True)


async def test_when_it_breaks_its_runs_are_lost_and_the_next_one_opens_it_anew() -> None:
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        calls = await started(client, worker)
        worker.sessions.break_off()
        assert await ends(client, calls) == {LOST}
        await worker.until(lambda: len(worker.cancels) == 3)
        await by_the_lane(worker, client, 2)
        first, second = worker.sessions.opens
        assert (second.session_id, second.epoch) == (first.session_id, first.epoch + 1)
        assert worker.sessions.streams[1].numbers == [1], "numbers begin anew"


async def test_the_lane_to_another_worker_is_undisturbed() -> None:
    async with (
        connected() as (broker, client),
        ScriptedWorker(slots=2) as one,
        ScriptedWorker(slots=2) as two,
    ):
        await one.register(broker.address)
        broken = await started(client, one, 2)
        await two.register(broker.address)
        lives = await started(client, two, 2)
        one.sessions.break_off()
        assert await ends(client, broken) == {LOST}
        for call in lives:
            assert not call.done()
            call.cancel()
        await two.until(lambda: all(run.ended for run in two.runs.values()))
        first, second = one.sessions.opens[0], two.sessions.opens[0]
        assert first.session_id != second.session_id, "or one could take over the other's"
        assert first.epoch < second.epoch


@pytest.mark.parametrize("how", ["unknown run", "flood", "long status", "too many", "too large"])
async def test_a_worker_that_sends_nonsense_loses_its_lane(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        calls = await started(client, worker, 2)
        stream, sending = worker.sessions.streams[0], None
        if how == "unknown run":
            await stream.send(run_data=pb.RunData(run_number=7, data=b"x"))
        elif how == "flood":
            more = [pb.SessionResponse(run_data=pb.RunData(run_number=1, data=bytes(CREDIT_BYTES)))] * 9
            await stream.send(more=more)
        elif how == "long status":
            await stream.send(end_run=pb.EndRun(run_number=1, code=1, message="x" * 10_000))
        elif how == "too many":
            await stream.send(more=[pb.SessionResponse()] * 9_000)
        else:
            sending = asyncio.create_task(
                stream.send(run_data=pb.RunData(run_number=1, data=bytes(66 * MIB)))
            )
        assert await ends(client, calls) == {LOST}
        said = {
            "unknown run": "run number 7 was never opened",
            "flood": "came without credit",
            "long status": "10000 bytes",
            "too many": "more has 1025 frames or more, the limit is 1024",
            "too large": "RESOURCE_EXHAUSTED",
        }
        assert said[how] in caplog.text
        await worker.until(lambda: len(worker.cancels) == 2)
        await by_the_lane(worker, client, 2)
        if sending is not None:
            await asyncio.gather(sending, return_exceptions=True)  # whether it could be written is not said


async def test_a_worker_that_is_lost_ends_its_lane_at_once() -> None:
    async with connected() as (broker, client), ScriptedWorker() as worker:
        lease = await worker.register(broker.address)
        calls = await started(client, worker)
        [link] = broker._links.values()
        await lease.close()
        assert await ends(client, calls) == {LOST}
        await worker.until(lambda: all(run.ended for run in worker.runs.values()))
        assert link.lane._table is None
        await worker.register(broker.address)
        await by_the_lane(worker, client, 2)
        first, second = worker.sessions.opens
        assert (first.session_id, first.epoch < second.epoch) == (second.session_id, True)


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_link_that_is_lost_or_closed_ends_its_lane(at_once: bool) -> None:
    request = run_request(new_id())
    held = HeldRequest(pb.RunRequest.FromString(request), request)
    async with ScriptedWorker() as worker:
        worker.script(held.request_id, Admit(), Hang())
        link = WorkerLink(Worker(worker.instance, "lease", worker.address, frozenset(), 1, 60.0, 0.0))
        link.lane.offered = True
        call = link.run(held, None)
        assert await asyncio.wait_for(call.admitted(), SECONDS)
        if at_once:
            link.lose()
        else:
            await link.close()
        with pytest.raises(grpc.aio.AioRpcError, match="the broker left it"):
            await call.read()
        await link.close()
        await worker.until(lambda: worker.runs[held.request_id].ended)


async def test_a_lane_whose_stream_cannot_be_started_leaves_no_run_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    went: list[str] = []

    def stream() -> Any:
        raise RuntimeError("the channel is closed")

    def by_run(held: HeldRequest, _: float | None) -> Any:
        went.append(held.request_id)
        return Called()

    class Called:
        async def admitted(self) -> bool:
            return True

    data = run_request(new_id())
    held = HeldRequest(pb.RunRequest.FromString(data), data)
    lane = WorkerLane("w", "f" * 32, SessionNames(), stream=stream, by_run=by_run)
    lane.offered = True
    run = lane.start(held, None)
    assert await asyncio.wait_for(run.admitted(), SECONDS)
    assert went == [held.request_id]
    assert not lane.takes(held), "for a while"
    await lane.close()
    assert "the channel is closed" in caplog.text


async def test_bytes_that_are_no_message_are_named() -> None:
    with pytest.raises(UnreadableError, match="a message of 3 bytes is no SessionResponse"):
        await parsed(b"\xff\xff\xff")


async def test_no_run_goes_to_another_process_at_the_address() -> None:
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.sessions._instance = "f" * 32
        call = client.start(run)
        assert (await client.read_all(call))[1:] == LOST
        assert "another process answers there, ffffffff" in await call.details()
        assert run not in worker.runs


async def test_a_worker_that_does_not_read_costs_what_it_was_sent_and_no_more() -> None:
    """However many runs come and leave again meanwhile."""
    async with connected() as (broker, client), ScriptedWorker(slots=16) as worker:
        await worker.register(broker.address)
        await by_the_lane(worker, client, 1)
        [link] = broker._links.values()
        table: Any = link.lane._table
        worker.sessions.reading.clear()
        await by_the_lane(worker, client, 1)  # it has come into the read before, and stays in the next one
        for _ in range(4):
            calls = [client.start(new_id(), task_json="x" * (MIB // 2)) for _ in range(16)]
            async with asyncio.timeout(SECONDS):
                while len(broker.relay._legs) < 16:  # noqa: ASYNC110  # nobody tells
                    await asyncio.sleep(0)
            for call in calls:
                call.cancel()
            async with asyncio.timeout(SECONDS):
                while broker.relay._legs:  # noqa: ASYNC110  # nobody tells
                    await asyncio.sleep(0)
        assert len(table) == 0
        assert table.waiting <= 16
        worker.sessions.break_off()


async def test_a_run_without_credit_holds_up_no_other() -> None:
    run, go = new_id(), asyncio.Event()
    large = bytes(CREDIT_BYTES)
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, *[Send(large)] * 40, Wait(go))
        call = client.start(run)
        await worker.until(lambda: run in worker.runs and worker.runs[run].sent > 4)
        for _ in range(20):
            await by_the_lane(worker, client, 1)
        assert worker.runs[run].sent < 40
        go.set()
        got, code, _ = await client.read_all(call)
        assert (b"".join(got), code) == (large * 40, "OK")
