"""Runs in a client's session at a broker: what is promised beyond what a Run's call would be."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import grpc
import pytest
from envtrio.v1 import env_service_pb2 as pb

from tests.helpers.raw_client import connected, message, run_request, until_queued
from tests.helpers.scripted_worker import Abort, Hang, ScriptedWorker, Send, Wait
from tests.helpers.session_runs import SessionRuns, start, until
from tests.helpers.stub_client import new_id, reason_of

if TYPE_CHECKING:
    from env_broker.server import BrokerServer
    from tests.helpers.raw_client import RawClient

MIB = 2**20
SECONDS = 10.0
INVALID = ("INVALID_ARGUMENT", "INVALID_REQUEST")


async def under_way(client: RawClient, worker: ScriptedWorker, count: int) -> tuple[SessionRuns, list[str]]:
    """A session with so many runs, each of which has had a message and hangs."""
    runs, ids = client.runs, [new_id() for _ in range(count)]
    for run in ids:
        worker.script(run, Send(message("a")), Hang())
        assert await start(runs, run).read() == message("a")
    return runs, ids


async def test_the_capability_is_told() -> None:
    async with connected() as (_, client):
        session = await client.session().open(new_id())
        assert session.opened is not None
        assert "session-runs" in session.opened.capabilities
        described = await client._stub.Describe(pb.DescribeRequest(protocol_generation=1))
        assert described.capabilities == session.opened.capabilities


async def test_three_hundred_runs_in_one_stream_come_out_as_three_hundred_calls() -> None:
    dice, scripts = random.Random(11), dict[str, list[bytes]]()
    for _ in range(300):
        sizes = [dice.choice((0, 1, 40, 3_000, 200_000)) for _ in range(dice.randrange(1, 6))]
        scripts[new_id()] = [dice.randbytes(size) for size in sizes]
    by_call = {run: new_id() for run in scripts}
    async with connected() as (broker, client), ScriptedWorker(slots=300) as worker:
        await worker.register(broker.address)
        for run, sent in scripts.items():
            refusal = [Abort(grpc.StatusCode.INTERNAL, "HOOK_FAILED")] if len(sent) == 5 else []
            worker.script(run, *map(Send, sent), *refusal)
            worker.script(by_call[run], *map(Send, sent), *refusal)
        calls = [start(client.runs, run) for run in scripts]
        told = await asyncio.gather(*map(client.read_all, calls))
        assert told == await asyncio.gather(*map(client.run, by_call.values()))
        assert [messages for messages, _, _ in told] == list(scripts.values())
        assert {code for _, code, _ in told} == {"OK", "INTERNAL"}
        for call in calls:
            assert call.frames == ["run_admitted", *["run_data"] * call.frames.count("run_data"), "end_run"]
        assert max(map(len, client.runs.messages)) > 2, "frames that are due leave together"


@pytest.mark.parametrize(
    "how", ["dropped", "superseded", "malformed", "goodbye", "half-closed", "killed", "the broker ends"]
)
async def test_all_runs_of_a_stream_end_with_it_and_no_others(how: str) -> None:
    async with ScriptedWorker(slots=6) as worker, connected() as (broker, client):
        await worker.register(broker.address)
        bare = new_id()
        worker.script(bare, Send(message("a")), Hang())
        other = client.start(bare)
        assert await other.read() == message("a")
        runs, ids = await under_way(client, worker, 5)
        match how:
            case "dropped":
                runs.drop()
            case "superseded":
                await client.session().open(runs.session_id, 2)
                assert await runs.status() == ("ABORTED", "SESSION_SUPERSEDED")
            case "malformed":
                runs.put(run_credit=pb.RunCredit(run_number=99))
                assert await runs.status() == INVALID
            case "goodbye":
                runs.put(goodbye=pb.SessionGoodbye())
                assert await runs.status() == ("OK", "")
            case "half-closed":
                await runs.call.done_writing()
                assert await runs.status() == INVALID
            case "killed":
                await runs.close()
            case _:
                [stream] = broker.sessions._streams.values()
                stream.over.set_exception(ZeroDivisionError("a fault of the broker itself"))
                assert (await runs.status())[0] == "UNKNOWN"
        await worker.until(lambda: all(worker.runs[run].ended for run in ids))
        await worker.until(lambda: {cancel.request_id for cancel in worker.cancels} == set(ids))
        assert len(worker.cancels) == len(ids), "told once"
        assert not worker.runs[bare].ended
        await until(lambda: broker.pool.workers()[0].busy == 1)
        other.cancel()
        await worker.until(lambda: worker.runs[bare].ended)


async def test_a_run_that_is_left_hears_of_its_end_and_of_nothing_else() -> None:
    async with connected(max_queue=5) as (broker, client), ScriptedWorker(slots=2) as worker:
        await worker.register(broker.address)
        runs, [busy] = await under_way(client, worker, 1)
        live, waits = new_id(), new_id()
        worker.script(live, Send(message("a")), Hang())
        call = start(runs, live)
        assert await call.read() == message("a")
        queued = start(runs, waits)
        await until_queued(broker, 1)
        at_once = start(runs, new_id())
        for left in (call, queued, at_once):
            left.cancel()
        for left in (call, queued, at_once):
            assert await client.read_all(left) == ([], "CANCELLED", "CALLER_LOST")
        assert (queued.frames, at_once.frames) == (["end_run"], ["end_run"])
        assert await client.cancel(live) == "ABORTED"
        await worker.until(lambda: worker.runs[live].ended and worker.cancels)
        assert list(worker.runs) == [busy, live]
        runs.put(leave_run=pb.LeaveRun(run_number=call.number))
        runs.put(run_credit=pb.RunCredit(run_number=call.number, credit_bytes=1))
        await client.cancel(new_id())  # a round trip
        assert not worker.runs[busy].ended, "the others go on"
        counts = broker.observer.counters.view()
        counters = [counts[name] for name in ("runs", "cancelled", "failed", "refused")]
        assert counters == [4, 3, 0, 0], "also the one that was left at once, and never began"


async def test_deadlines_are_the_servers_to_watch() -> None:
    run, late = new_id(), new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Send(message("a")), Hang())
        worker.script(late, Hang(), optional=True)
        call = start(client.runs, run, timeout=0.3)
        assert await client.read_all(call) == ([message("a")], "DEADLINE_EXCEEDED", "DEADLINE")
        assert 0 < (worker.runs[run].time_remaining or 9) < 0.5
        await worker.until(lambda: worker.runs[run].ended and worker.cancels)
        over = start(client.runs, late, timeout=0.0)
        assert await client.read_all(over) == ([], "DEADLINE_EXCEEDED", "DEADLINE")


async def test_refusals_end_their_own_run() -> None:
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Send(message("a")), Hang())
        call = start(client.runs, run)
        assert await call.read() == message("a")
        told = {
            "DUPLICATE_REQUEST_ID": run_request(run),
            "INVALID_REQUEST_ID": run_request("x" * 32),
            "PROTOCOL_GENERATION": run_request(new_id(), protocol_generation=2),
            "ENVIRONMENT_NOT_FOUND": run_request(new_id(), environment="none such"),
            "MESSAGE_TOO_LARGE": run_request(new_id(), task_json="x" * MIB),
        }
        for reason, data in told.items():
            refused = client.runs.start(data)
            assert (await client.read_all(refused))[2] == reason
            assert refused.frames == ["end_run"]
        assert broker.observer.counters.view()["refused"] == len(told) - 1, "too large counts as failed"
        assert not worker.runs[run].ended
        call.cancel()
        await worker.until(lambda: worker.runs[run].ended and worker.cancels)
        assert [cancel.request_id for cancel in worker.cancels] == [run], "once, of five who named it or not"


@pytest.mark.parametrize(
    "frames",
    [
        [("open_run", 2), ("open_run", 2)],
        [("open_run", 2), ("open_run", 1)],
        [("leave_run", 1)],
        [("open_run", 1), ("run_credit", 2)],
        [("goodbye", 0), ("open_run", 1)],
    ],
    ids=["equal", "lower", "left", "credit", "after goodbye"],
)
async def test_frames_that_make_no_sense_end_the_stream(frames: list[tuple[str, int]]) -> None:
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.sessions.reading.clear()
        session = await client.session().open(new_id())
        if frames[0][0] == "goodbye":  # which leaves the stream open while a confirmation is pending
            run = new_id()
            worker.script(run, Send(message("reply")))
            assert (await client.run(run))[1] == "OK"
            await session.send(confirm=pb.Confirm(request_ids=[run]))
        for kind, number in frames:
            made = {"open_run": pb.OpenRun, "leave_run": pb.LeaveRun, "run_credit": pb.RunCredit}.get(kind)
            await session.send(**{kind: made(run_number=number) if made else pb.SessionGoodbye()})
        assert await session.status() == INVALID
        worker.sessions.reading.set()
        bare = new_id()
        worker.script(bare, Send(message("a")))
        assert await client.run(bare) == ([message("a")], "OK", ""), "nothing else is disturbed"


async def test_a_session_may_come_with_all_that_it_has_to_say() -> None:
    run, mine = new_id(), new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Send(message("a")))
        first = pb.SessionRequest(open=pb.SessionOpen(session_id=mine, epoch=1, protocol_generation=1))
        first.more.add().open_run.MergeFrom(
            pb.OpenRun(run_number=1, request=pb.RunRequest.FromString(run_request(run)), credit_bytes=9_999)
        )
        first.more.add().confirm.request_ids.append(new_id())
        session = client.session()
        await session.call.write(first)
        frames: list[str] = []
        while "end_run" not in frames or "confirm_answers" not in frames:
            frame = await session.read()
            assert frame is not None
            frames += [part.WhichOneof("frame") or "" for part in (frame, *frame.more)]
        assert frames[0] == "opened"
        assert [kind for kind in frames if "run" in kind] == ["run_admitted", "run_data", "end_run"]
        session.drop()


async def test_a_run_is_confirmed_in_the_stream_that_carried_it() -> None:
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Send(message("reply")))
        runs = client.runs
        call = runs.start(run_request(run, session_id=runs.session_id))
        assert await client.read_all(call) == ([message("reply")], "OK", "")
        runs.put(confirm=pb.Confirm(request_ids=[run]))
        await until(lambda: runs.answers == {run: "CONFIRM_OUTCOME_CONFIRMED"})
        assert await client.cancel(run) == "TOO_LATE"


async def test_a_worker_that_is_lost_takes_its_runs_and_leaves_the_stream() -> None:
    async with connected() as (broker, client), ScriptedWorker() as one, ScriptedWorker() as two:
        await one.register(broker.address)
        runs, ids = await under_way(client, one, 3)
        await two.register(broker.address)
        calls = list(runs._calls.values())
        await one.crash()
        for call in calls:
            assert (await client.read_all(call))[1:] == ("UNAVAILABLE", "WORKER_LOST")
        assert [one.runs[run].ended for run in ids] == [True] * 3
        run = new_id()
        two.script(run, Send(message("b")))
        assert await client.read_all(start(runs, run)) == ([message("b")], "OK", "")


async def test_a_run_that_waits_for_its_worker_is_placed_when_there_is_one() -> None:
    run, go = new_id(), asyncio.Event()
    async with connected() as (broker, client), ScriptedWorker() as one, ScriptedWorker() as two:
        await one.register(broker.address)
        one.script(run, Wait(go), Abort(grpc.StatusCode.UNAVAILABLE, "DRAINING"))
        two.script(run, Send(message("a")))
        call = start(client.runs, run)
        await one.until(lambda: run in one.runs)
        await two.register(broker.address)
        go.set()
        assert await client.read_all(call) == ([message("a")], "OK", "")
        assert call.frames == ["run_admitted", "run_data", "end_run"]


async def test_a_stream_that_breaks_says_so_to_all_its_runs() -> None:
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        runs, _ = await under_way(client, worker, 2)
        runs.drop()
        for call in runs._calls.values():
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call.read()
            assert (error.value.code(), reason_of(error.value)) == (grpc.StatusCode.UNAVAILABLE, "")
        await until(lambda: _idle(broker))


def _idle(broker: BrokerServer) -> bool:
    return not broker.relay._legs and broker.pool.workers()[0].busy == 0
