"""What runs in a client's session cost a broker whose client does not read, or which stops."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import pytest
from envtrio.v1 import env_service_pb2 as pb

from env_broker import run_leg, session_frames
from env_broker.client_stream import MAX_WAITING
from env_broker.held_request import HeldRequest
from env_broker.run_leg import UNREAD_SECONDS
from tests.helpers.clock import FakeClock
from tests.helpers.raw_client import connected, message, run_request, until_queued
from tests.helpers.scripted_worker import Abort, Admit, Hang, ScriptedWorker, Send, Wait, WaitCancel
from tests.helpers.session_runs import CREDIT, start, until
from tests.helpers.stub_client import new_id

MIB = 2**20
SECONDS = 10.0
MOST_WAITING = MAX_WAITING + 1_024
"""Somewhat more than where reading stops: those whose runs just end."""


async def test_a_run_without_credit_holds_up_itself_alone() -> None:
    held, other, large = new_id(), new_id(), b"x" * (MIB // 2)
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(held, *[Send(large)] * 8)
        worker.script(other, *[Send(large)] * 8)
        silent = start(client.runs, held, credit=0)
        silent.thrifty = True
        assert await client.read_all(start(client.runs, other)) == ([large] * 8, "OK", "")
        assert silent.frames == ["run_admitted"]
        for credit, unread in ((1, 1), (len(large) - 1, 1), (1, 2), (len(large), 3)):
            silent.credit(credit)
            await client.cancel(new_id())  # a round trip
            await until(lambda unread=unread: silent.unread == unread * len(large))  # type: ignore[misc]
        silent.credit(8 * len(large))
        assert await client.read_all(silent) == ([large] * 8, "OK", "")


async def test_a_reader_that_is_slow_costs_its_credit_and_one_message() -> None:
    run, piece = new_id(), b"x" * 50_000
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, *[Send(piece)] * 100)
        call = start(client.runs, run)
        await until(lambda: call.unread >= CREDIT)
        await client.cancel(new_id())  # a round trip
        assert CREDIT <= call.unread < CREDIT + len(piece)
        assert (await client.read_all(call))[1:] == ("OK", "")


@pytest.mark.parametrize("cause", ["worker lost", "cancelled", "cancelled, then a message", "stopped"])
async def test_an_ended_run_does_not_wait_for_credit(cause: str) -> None:
    """Its message is dropped at once: this clock stands still."""
    run, clock, taken_back = new_id(), FakeClock(), asyncio.Event()
    async with ScriptedWorker(slots=1) as worker, connected(clock) as (broker, client):
        lease = await worker.register(broker.address)
        late = cause.endswith("message")
        ends = Abort(grpc.StatusCode.CANCELLED, "CANCEL_REQUESTED") if "cancelled" in cause else Hang()
        before = [Wait(taken_back)] if late else []
        behind = [WaitCancel()] if "cancelled" in cause else []
        worker.script(run, Admit(), *before, Send(message("a")), *behind, ends)
        call = start(client.runs, run, credit=0)
        await call.initial_metadata()
        [stream] = broker.sessions._streams.values()
        [outlet] = stream.outbox._outlets
        await until(lambda: late or outlet.waits)
        if cause == "worker lost":
            await lease.close()
        elif cause == "stopped":
            broker.relay.stop()
        else:
            assert await client.cancel(run) == "ABORTED"
            taken_back.set()
        ended = ("CANCELLED", "CANCEL_REQUESTED") if "cancelled" in cause else ("UNAVAILABLE", "WORKER_LOST")
        assert await client.read_all(call) == ([], *ended)
        assert call.frames == ["run_admitted", "end_run"]
        await asyncio.wait_for(broker.relay.idle(), SECONDS)
        await worker.until(lambda: worker.runs[run].ended)


async def test_an_ended_run_does_not_wait_for_long_for_a_client_that_does_not_read() -> None:
    run, other, clock = new_id(), new_id(), FakeClock()
    async with connected(clock) as (broker, client), ScriptedWorker(slots=1) as worker:
        lease = await worker.register(broker.address)
        worker.script(run, Admit(), Send(bytes(48 * MIB)), Hang())
        runs = client.runs
        call = start(runs, run)
        await call.initial_metadata()
        runs.reading.clear()
        await worker.until(lambda: worker.runs[run].sent)
        [leg] = broker.relay._legs.values()
        await lease.close()
        await until(lambda: leg._waiting is not None)
        await clock.sleepers(2)  # the housekeeping, and this
        clock.advance(UNREAD_SECONDS)
        await asyncio.wait_for(broker.relay.idle(), SECONDS)
        runs.reading.set()
        assert (await client.read_all(call))[1:] == ("UNAVAILABLE", "WORKER_LOST"), "it reads after all"
        await worker.register(broker.address)
        worker.script(other, Send(b""))
        assert await client.read_all(start(runs, other)) == ([b""], "OK", ""), "the only slot is free"


async def test_a_client_that_reads_nothing_cannot_make_the_broker_grow() -> None:
    """Refusals wait to be told; when there are too many, no more requests are read."""
    refused = run_request(new_id(), protocol_generation=2)
    count = 0

    class Context:
        def __init__(self) -> None:
            self.reads = self.told = self.most = 0
            self.going_on = asyncio.Event()

        async def read(self) -> bytes | object:
            nonlocal count
            await asyncio.sleep(0)
            [stream] = self.sessions() or [None]
            self.most = max(self.most, stream.outbox.waiting if stream else 0)
            self.reads += 1
            if self.reads == 1:
                opening = pb.SessionOpen(session_id=new_id(), epoch=1, protocol_generation=1)
                return pb.SessionRequest(open=opening).SerializeToString()
            if self.reads > 20:
                await asyncio.Event().wait()
            message = pb.SessionRequest()
            for frame in (message, *(message.more.add() for _ in range(1_023))):
                count += 1
                frame.open_run.run_number = count
                frame.open_run.request.MergeFromString(refused)
            return message.SerializeToString()

        async def write(self, data: bytes) -> None:
            answer = pb.SessionResponse.FromString(data)
            if not answer.HasField("opened"):
                await self.going_on.wait()
                self.told += sum(frame.HasField("end_run") for frame in (answer, *answer.more))

        def sessions(self) -> list[Any]:
            return list(broker.sessions._streams.values())

    async with connected() as (broker, _):
        context: Any = Context()
        serving = asyncio.create_task(broker.sessions.serve(context, broker._env._carrier))
        await until(lambda: bool(context.sessions()))
        [stream] = context.sessions()
        await until(lambda: stream.full)
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert stream.outbox.waiting <= MOST_WAITING
        assert context.reads < 12
        context.going_on.set()
        await until(lambda: context.told == 19 * 1_024)
        assert context.most <= MOST_WAITING
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        assert count == context.told


async def test_a_reply_counts_for_the_worker_only_when_its_client_was_written_to() -> None:
    """While the reply waits to be written, the run is live, and leaving it takes the episode back."""
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Admit(), Send(message("reply")))
        worker.cancel_lines[run] = [pb.CANCEL_OUTCOME_DISCARDED]
        call = start(client.runs, run, credit=0)
        await call.initial_metadata()
        await worker.until(lambda: worker.runs[run].ended)
        for _ in range(3):
            await client.cancel(new_id())  # a round trip
        route = broker.routes.get(run)
        assert route is not None
        assert route.open
        call.cancel()
        assert await client.read_all(call) == ([], "CANCELLED", "CALLER_LOST")
        await worker.until(lambda: worker.cancels)
        await broker.relay.idle()
        await broker.errands.close(SECONDS)
        assert await client.cancel(run) == "DISCARDED"


async def test_a_broker_that_stops_tells_each_run_its_end_before_the_streams() -> None:
    run, waits, mine = new_id(), new_id(), new_id()
    async with ScriptedWorker(slots=1) as worker, connected(drain_seconds=0.0) as (broker, client):
        await worker.register(broker.address)
        worker.script(run, Send(message("a")), Hang())
        call = start(client.runs, run)
        assert await call.read() == message("a")
        queued = start(client.runs, waits)
        await until_queued(broker, 1)
        stopping = asyncio.create_task(broker.stop())
        assert (await client.read_all(queued))[1:] == ("UNAVAILABLE", "DRAINING")
        assert (await client.read_all(call))[1:] == ("UNAVAILABLE", "WORKER_LOST")
        late = await client.read_all(start(client.runs, mine))
        assert late[1] == "UNAVAILABLE"
        assert await client.runs.status() == ("UNAVAILABLE", "DRAINING")
        await stopping
        await worker.until(lambda: worker.runs[run].ended)


async def test_a_broker_that_stops_does_not_wait_for_a_stream_that_nobody_reads() -> None:
    run = new_id()
    async with ScriptedWorker() as worker, connected(drain_seconds=0.0) as (broker, client):
        await worker.register(broker.address)
        worker.script(run, Admit(), Send(bytes(48 * MIB)), Hang())
        call = start(client.runs, run)
        await call.initial_metadata()
        client.runs.reading.clear()
        await worker.until(lambda: worker.runs[run].sent)
        await asyncio.wait_for(broker.stop(), 2 * SECONDS)
        await worker.until(lambda: worker.runs[run].ended)
        client.runs.reading.set()


async def test_a_request_is_let_go_of_when_a_worker_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    dropped = asyncio.Event()

    class Counted(HeldRequest):
        def drop(self) -> None:
            held.append(sys.getrefcount(self.data) - 1)
            super().drop()
            dropped.set()

    monkeypatch.setattr(session_frames, "HeldRequest", Counted)
    monkeypatch.setattr(run_leg, "SETTLED_SECONDS", 0.05)
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Admit(), Wait(dropped), Send(message("a")))
        call = client.runs.start(run_request(run, task_json="x" * (MIB - 1_000)))
        assert await client.read_all(call) == ([message("a")], "OK", "")
    assert held == [1], "nor does the message keep it that it came in"
