"""Sessions at a broker: who owns one, and what becomes of the runs of one that is lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from envtrio.v1 import env_service_pb2 as pb
from envtrio.v1 import registry_service_pb2

from env_broker.status import Refusal
from env_broker.worker_cancel import SILENCE_SECONDS
from tests.helpers.clock import FakeClock
from tests.helpers.raw_client import connected, message, until_queued
from tests.helpers.scripted_worker import Abort, Hang, ScriptedWorker, Send, WaitCancel
from tests.helpers.stub_client import OPTIONS, new_id, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_broker.server import BrokerServer
    from tests.helpers.raw_client import RawClient

GRACE = 3.0
DISCARDED = pb.CONFIRM_OUTCOME_DISCARDED
CANCELLED = Abort(grpc.StatusCode.CANCELLED, "CANCEL_REQUESTED")
REFUSED = ("INVALID_ARGUMENT", "INVALID_REQUEST")


async def replied(client: RawClient, worker: ScriptedWorker, session_id: str = "", run: str = "") -> str:
    """A run whose reply has passed."""
    run = run or new_id()
    worker.script(run, Send(message("reply")))
    assert (await client.run(run, session_id=session_id))[1] == "OK"
    return run


async def until_away(broker: BrokerServer) -> None:
    """Wait until the broker has seen that a session's stream ended, one event-loop turn at a time."""
    async with asyncio.timeout(10):
        while broker.sessions.table.next_loss is None:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0)


async def until(true: Callable[[], bool]) -> None:
    """Wait for it, one event-loop turn at a time."""
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0)


async def lose_what_is_away(broker: BrokerServer, clock: FakeClock) -> None:
    await until_away(broker)
    await clock.sleepers(2)  # housekeeping, and the grace
    clock.advance(GRACE)


async def test_a_lost_session_has_its_runs_cancelled_and_no_others() -> None:
    clock, mine, others = FakeClock(), new_id(), new_id()
    live, queued, foreign = new_id(), new_id(), new_id()
    async with (
        connected(clock, lease_seconds=3600) as (broker, client),
        ScriptedWorker(slots=1) as one,
        ScriptedWorker(slots=1) as two,
    ):
        lease = await one.register(broker.address)
        unconfirmed, confirmed = await replied(client, one, mine), await replied(client, one, mine)
        untouched, bare = await replied(client, one, others), await replied(client, one)
        await lease.beat(draining=True)
        await two.register(broker.address)
        two.script(live, Send(message("a")), WaitCancel(), CANCELLED)
        call = client.start(live, session_id=mine)
        assert await call.read() == message("a")
        waits = asyncio.create_task(client.run(queued, session_id=mine))
        await until_queued(broker, 1)
        session, other = await client.session().open(mine), await client.session().open(others)
        assert await session.confirm(confirmed) == ["CONFIRMED"]
        session.drop()
        await lose_what_is_away(broker, clock)
        assert (await waits)[1:] == ("CANCELLED", "SESSION_LOST")
        assert (await client.read_all(call))[1:] == ("CANCELLED", "CANCEL_REQUESTED")
        await one.until(lambda: one.cancels)
        assert [cancel.request_id for cancel in one.cancels] == [unconfirmed]
        assert [cancel.request_id for cancel in two.cancels] == [live]
        assert await other.confirm(untouched, bare) == ["CONFIRMED"] * 2
        for worker in (one, two):
            worker.sessions.lines[foreign] = [pb.CONFIRM_OUTCOME_UNKNOWN]
        assert await other.confirm(foreign) == ["UNKNOWN"]
        again = await client.session().open(mine, 2)  # too late for those, but not for others
        assert await again.confirm(confirmed) == ["CONFIRMED"]


async def test_a_run_that_comes_after_its_session_was_lost_is_not_left_alone() -> None:
    clock, mine = FakeClock(), new_id()
    async with connected(clock, lease_seconds=3600) as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        (await client.session().open(mine)).drop()
        await lose_what_is_away(broker, clock)
        await until(lambda: not len(broker.sessions.table))
        left = await replied(client, worker, mine)
        await lose_what_is_away(broker, clock)
        await worker.until(lambda: [cancel.request_id for cancel in worker.cancels] == [left])
        kept = await replied(client, worker, mine)
        again = await client.session().open(mine, 2)
        clock.advance(60.0)
        assert await again.confirm(kept) == ["CONFIRMED"], "a client that is back goes on"
        assert len(worker.cancels) == 1


async def test_a_worker_that_reports_runs_of_a_lost_session_has_them_cancelled() -> None:
    clock, mine, run = FakeClock(), new_id(), new_id()
    async with connected(clock, lease_seconds=3600) as (broker, client), ScriptedWorker() as worker:
        (await client.session().open(mine)).drop()
        await lose_what_is_away(broker, clock)
        await until(lambda: not len(broker.sessions.table))
        held = registry_service_pb2.HeldRun(
            request_id=run, session_id=mine, state=registry_service_pb2.HELD_RUN_STATE_REPLIED
        )
        await worker.register(broker.address, held_runs=[held])
        await lose_what_is_away(broker, clock)
        await worker.until(lambda: [cancel.request_id for cancel in worker.cancels] == [run])


async def test_a_silent_worker_holds_up_no_other_lost_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("env_broker.link._MOST_AT_ONCE", 1)
    clock, mine = FakeClock(), new_id()
    async with (
        connected(clock, lease_seconds=3600) as (broker, client),
        ScriptedWorker() as silent,
        ScriptedWorker() as other,
    ):
        lease = await silent.register(broker.address)
        stuck, behind = [await replied(client, silent, mine) for _ in range(2)]
        await lease.beat(draining=True)
        await other.register(broker.address)
        run = await replied(client, other, mine)
        silent.cancel_lines[stuck] = [Hang()]
        (await client.session().open(mine)).drop()
        await lose_what_is_away(broker, clock)
        await other.until(lambda: [cancel.request_id for cancel in other.cancels] == [run])
        await silent.until(lambda: [cancel.request_id for cancel in silent.cancels] == [stuck])
        await clock.sleepers(2)  # housekeeping, and the silence
        clock.advance(SILENCE_SECONDS)
        # While the first waits for its next try, the second has its turn.
        await silent.until(lambda: [cancel.request_id for cancel in silent.cancels] == [stuck, behind])


async def test_a_session_that_comes_back_in_its_grace_goes_on() -> None:
    clock, mine = FakeClock(), new_id()
    async with connected(clock, lease_seconds=3600) as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        run = await replied(client, worker, mine)
        session = await client.session().open(mine)
        session.drop()
        await until_away(broker)
        await clock.sleepers(2)
        clock.advance(GRACE - 0.1)
        back = await client.session().open(mine, 2)
        clock.advance(60.0)
        assert await back.confirm(run) == ["CONFIRMED"]
        assert worker.cancels == []


async def test_an_older_stream_is_ended_and_its_end_means_nothing() -> None:
    clock, mine = FakeClock(), new_id()
    async with connected(clock, lease_seconds=3600) as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        run = await replied(client, worker, mine)
        first = await client.session().open(mine, 1)
        second = await client.session().open(mine, 7)
        assert await first.status() == ("ABORTED", "SESSION_SUPERSEDED")
        for epoch in (1, 6, 7):
            late = client.session()
            await late.send(open=pb.SessionOpen(session_id=mine, epoch=epoch, protocol_generation=1))
            assert await late.status() == ("ABORTED", "SESSION_SUPERSEDED")
        assert broker.sessions.table.next_loss is None
        clock.advance(60.0)
        assert await second.confirm(run) == ["CONFIRMED"]
        assert worker.cancels == []


async def test_after_a_goodbye_runs_are_left_to_themselves() -> None:
    clock, mine, live = FakeClock(), new_id(), new_id()
    async with connected(clock, lease_seconds=3600) as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        run = await replied(client, worker, mine)
        session = await client.session().open(mine)
        worker.sessions.reading.clear()
        asked = asyncio.create_task(session.confirm(run))
        await worker.until(lambda: worker.sessions.opens)
        await session.send(goodbye=pb.SessionGoodbye())
        worker.sessions.reading.set()
        assert await asked == ["CONFIRMED"], "what is pending is answered"
        assert await session.status() == ("OK", "")
        worker.script(live, Send(message("a")), Hang())
        call = client.start(live, session_id=mine)
        assert await call.read() == message("a")
        clock.advance(60.0)
        assert broker.sessions.table.next_loss is None
        assert worker.cancels == []
        call.cancel()
        await worker.until(lambda: worker.runs[live].ended)


@pytest.mark.parametrize(
    "frames",
    [
        [{"open": pb.SessionOpen(session_id="a" * 32, epoch=2, protocol_generation=1)}],
        [{"run_credit": pb.RunCredit(run_number=1)}],
        [{"leave_run": pb.LeaveRun(run_number=1)}],
        [{"open_run": pb.OpenRun(run_number=1)}, {"open_run": pb.OpenRun(run_number=1)}],
        [{}],
        [{"confirm": pb.Confirm(request_ids=["0" * 32] * 1025)}],
        [{"confirm": pb.Confirm(request_ids=["0" * 32, "x"])}],
    ],
    ids=lambda frames: next(iter(frames[0]), "empty"),
)
async def test_a_malformed_frame_ends_the_stream_without_a_goodbye(frames: list[dict[str, Any]]) -> None:
    async with connected() as (broker, client):
        session = await client.session().open(new_id())
        for frame in frames:
            await session.send(**frame)
        assert await session.status() == REFUSED
        await until_away(broker)


async def test_a_frame_after_goodbye_is_refused() -> None:
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        run = await replied(client, worker)
        worker.sessions.lines[run] = [None]
        session = await client.session().open(new_id())
        await session.send(confirm=pb.Confirm(request_ids=[run]))
        await session.send(goodbye=pb.SessionGoodbye())
        await session.send(confirm=pb.Confirm(request_ids=[run]))
        assert await session.status() == REFUSED
        assert broker.sessions.table.next_loss is None, "it said goodbye all the same"


async def test_opens_are_checked() -> None:
    async def told(client: RawClient, **frame: Any) -> tuple[str, str]:
        session = client.session()
        await session.send(**frame)
        return await session.status()

    async with connected() as (broker, client):
        assert await told(client, goodbye=pb.SessionGoodbye()) == REFUSED
        bad = pb.SessionOpen(session_id="x", epoch=1, protocol_generation=1)
        assert await told(client, open=bad) == REFUSED
        foreign = pb.SessionOpen(session_id=new_id(), epoch=1, protocol_generation=9)
        assert await told(client, open=foreign) == ("FAILED_PRECONDITION", "PROTOCOL_GENERATION")
        assert len(broker.sessions.table) == 0
        broker.sessions.table._limit = 0  # type: ignore[misc]
        fresh = pb.SessionOpen(session_id=new_id(), epoch=1, protocol_generation=1)
        assert await told(client, open=fresh) == ("RESOURCE_EXHAUSTED", "TABLE_FULL")


async def test_a_stream_that_sends_nothing_is_ended() -> None:
    clock = FakeClock()
    async with connected(clock) as (_, client):
        session = client.session()
        status = asyncio.create_task(session.status())
        await clock.sleepers(2)
        clock.advance(10.0)
        assert await status == REFUSED


async def test_a_client_that_closes_its_side_without_a_goodbye_has_its_grace() -> None:
    async with connected() as (broker, client):
        session = await client.session().open(new_id())
        await session.call.done_writing()
        assert await session.status() == REFUSED
        assert broker.sessions.table.next_loss is not None


async def test_a_broker_that_stops_waits_for_confirmations_and_loses_no_session() -> None:
    mine = new_id()
    async with ScriptedWorker() as worker:
        async with connected() as (broker, client):
            await worker.register(broker.address)
            session = await client.session().open(mine)
            run = await replied(client, worker, mine)
            stopping = asyncio.create_task(broker.stop())
            assert await session.confirm(run) == ["CONFIRMED"]
            assert await session.status() == ("UNAVAILABLE", "DRAINING")
            await stopping
            assert worker.sessions.goodbyes == [1]
        assert worker.cancels == []


async def test_a_frame_that_is_no_message_is_refused() -> None:
    async with (
        connected() as (broker, _),
        grpc.aio.insecure_channel(broker.address, options=OPTIONS) as channel,
    ):
        call: Any = channel.stream_stream("/envtrio.v1.EnvService/Session")()
        await call.write(b"\xff")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call.read()
        assert (error.value.code().name, reason_of(error.value)) == REFUSED


async def test_a_broker_that_ends_opens_no_session() -> None:
    async with connected() as (broker, client):
        broker.sessions.close(Refusal("DRAINING", "the test says so"))
        session = client.session()
        await session.send(open=pb.SessionOpen(session_id=new_id(), epoch=1, protocol_generation=1))
        assert await session.status() == ("UNAVAILABLE", "DRAINING")
        assert len(broker.sessions.table) == 0
