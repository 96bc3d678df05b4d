"""Sessions of a worker over real gRPC: confirmations, graces, epochs, goodbyes, and clients that die."""

from __future__ import annotations

import asyncio
import sys
import time

import grpc
import pytest
from envtrio.v1 import env_service_pb2 as pb
from envtrio.v1 import env_service_pb2_grpc

from tests.helpers.history import Asked, Ended
from tests.helpers.runner_harness import Stop, within
from tests.helpers.session_stream import SessionStream
from tests.helpers.stub_client import OPTIONS, new_id
from tests.helpers.worker_server import ENDLESS, SMALL, serving_worker

# Confirmations.


async def test_a_confirmation_is_answered_and_the_window_is_gone() -> None:
    async with serving_worker() as subject:
        session = await subject.session("a" * 32)
        run, other = await subject.replied("a" * 32), await subject.replied("a" * 32)
        assert subject.runner.table.open_windows == 2
        assert await session.confirm(run) == ["CONFIRMED"]
        assert subject.runner.table.open_windows == 1
        assert subject.runner.table.get(run) is None
        assert subject.runner.counters["confirmed"] == 1
        assert await subject.client.cancel(run) == "TOO_LATE"
        assert await session.confirm(run) == ["CONFIRMED"], "again: the first one's outcome"
        assert await session.confirm(other) == ["CONFIRMED"]
        assert await session.goodbye() == ("OK", "")
        assert subject.discards(run) == 0


async def test_many_in_one_frame_each_get_the_truth() -> None:
    async with serving_worker() as subject:
        session = await subject.session("a" * 32)
        replied, cancelled, expired = [await subject.replied("a" * 32) for _ in range(3)]
        assert await subject.client.cancel(cancelled) == "DISCARDED"
        running = subject.client.start(ENDLESS, session_id="a" * 32)
        await subject.until(lambda: subject.runner.slots.held == 1)
        assert await session.confirm(replied, cancelled, running.run) == ["CONFIRMED", "DISCARDED", "UNKNOWN"]
        subject.after(60)
        assert await session.confirm(expired) == ["CONFIRMED"]
        assert await subject.client.cancel(running.run) == "ABORTED"
        assert (await running.finish()).reason == "CANCEL_REQUESTED"
        assert await session.confirm(running.run) == ["DISCARDED"], "it was never delivered"
        assert await session.confirm(*[new_id() for _ in range(1024)]) == ["UNKNOWN"] * 1024
        session.drop()


async def test_who_confirms_need_not_be_the_runs_own_session() -> None:
    """A broker confirms in its own session what clients confirmed in theirs."""
    async with serving_worker() as subject:
        of_client, of_none = await subject.replied("a" * 32), await subject.replied()
        broker = await subject.session("b" * 32)
        assert await broker.confirm(of_client, of_none) == ["CONFIRMED", "CONFIRMED"]
        broker.drop()


# Graces, epochs, goodbyes.


async def test_a_lost_session_takes_its_live_runs_and_its_replies_and_no_others() -> None:
    async with serving_worker() as subject:
        mine, other = "a" * 32, "b" * 32
        sessions = [await subject.session(name) for name in (mine, other)]
        replied, confirmed = await subject.replied(mine), await subject.replied(mine)
        untouched = [await subject.replied(other), await subject.replied(""), await subject.replied("c" * 32)]
        live = subject.client.start(ENDLESS, session_id=mine)
        stop = Stop()
        keeping = await subject.in_keep(stop, session_id=mine)
        assert await sessions[0].confirm(confirmed) == ["CONFIRMED"]
        sessions[0].drop()
        await subject.until_away()
        subject.after(2.9)
        assert subject.runner.table.open_windows == 4
        subject.after(0.1)
        assert (await live.finish()).reason == "SESSION_LOST"
        assert (await keeping.finish()).reason == "SESSION_LOST"
        assert subject.discards(keeping.run) == 0, "discard was called while keep runs"
        stop.go()
        await within(subject.runner.wait_hooks())
        assert [subject.discards(run) for run in (replied, keeping.run, confirmed)] == [1, 1, 0]
        # What it comes back for was decided.
        again = await subject.session(mine, 2)
        assert await again.confirm(replied, confirmed) == ["DISCARDED", "CONFIRMED"]
        assert await sessions[1].confirm(*untouched) == ["CONFIRMED"] * 3
        assert (await subject.client.run(SMALL, session_id=mine)).code == "OK", "the session goes on"
        for session in (again, sessions[1]):
            assert await session.goodbye() == ("OK", "")


async def test_a_run_that_comes_after_its_session_was_lost_is_lost_with_it() -> None:
    async with serving_worker() as subject:
        name = "a" * 32
        (await subject.session(name)).drop()
        await subject.until_away()
        subject.after(3)
        replied = await subject.replied(name)
        live = subject.client.start(ENDLESS, session_id=name)
        await subject.until(lambda: subject.runner.slots.held == 1)
        subject.after(2.9)
        assert subject.runner.table.open_windows == 1
        subject.after(0.1)
        await within(subject.runner.wait_until(lambda: not subject.runner.slots.held))
        assert (await live.finish()).reason == "SESSION_LOST"
        await subject.until_discarded(replied)
        assert await subject.client.cancel(replied) == "DISCARDED"


async def test_a_run_that_comes_after_its_session_was_lost_is_kept_if_that_comes_back() -> None:
    async with serving_worker() as subject:
        name = "a" * 32
        (await subject.session(name)).drop()
        await subject.until_away()
        subject.after(3)
        run = await subject.replied(name)
        back = await subject.session(name, 2)
        subject.after(3)
        assert await back.confirm(run) == ["CONFIRMED"]
        assert await back.goodbye() == ("OK", "")


async def test_back_within_the_grace_it_goes_on() -> None:
    async with serving_worker() as subject:
        name = "a" * 32
        first = await subject.session(name)
        run = await subject.replied(name)
        first.drop()
        await subject.until_away()
        subject.after(2.9)
        second = await subject.session(name, 2)
        subject.after(50)
        assert await second.confirm(run) == ["CONFIRMED"]
        assert await second.goodbye() == ("OK", "")


async def test_the_end_of_an_older_epoch_means_nothing() -> None:
    async with serving_worker() as subject:
        name = "a" * 32
        old = await subject.session(name)
        run = await subject.replied(name)
        new = await subject.session(name, 7)
        assert await old.status() == ("ABORTED", "SESSION_SUPERSEDED")
        subject.after(50)
        assert await new.confirm(run) == ["CONFIRMED"]
        new.drop()


@pytest.mark.parametrize("epoch", [1, 2])
async def test_an_epoch_that_is_not_higher_is_refused(epoch: int) -> None:
    async with serving_worker() as subject:
        name = "a" * 32
        owner = await subject.session(name, 2)
        late = subject.stream()
        with pytest.raises(grpc.aio.AioRpcError):
            await late.open(name, epoch)
        assert await late.status() == ("ABORTED", "SESSION_SUPERSEDED")
        assert await owner.confirm(new_id()) == ["UNKNOWN"]
        assert await owner.goodbye() == ("OK", "")


async def test_after_a_goodbye_its_runs_are_left_to_themselves() -> None:
    async with serving_worker() as subject:
        name = "a" * 32
        session = await subject.session(name)
        run = await subject.replied(name)
        stop = Stop()
        live = await subject.in_keep(stop, session_id=name)
        assert await session.goodbye() == ("OK", "")
        subject.after(30)
        stop.go()
        assert (await live.finish()).code == "OK"
        assert subject.runner.table.open_windows == 2
        assert await subject.client.cancel(run) == "DISCARDED", "the window still decides"


async def test_a_goodbye_needs_no_half_close() -> None:
    async with serving_worker() as subject:
        session = await subject.session("a" * 32)
        await session.send(goodbye=pb.SessionGoodbye())
        assert await session.status() == ("OK", "")
        assert subject.server.sessions.table.next_expiry is None


async def test_a_stream_that_breaks_behind_its_goodbye_is_no_loss() -> None:
    async with serving_worker() as subject:
        sessions = subject.server.sessions
        session = await subject.session("a" * 32)
        await session.send(goodbye=pb.SessionGoodbye())
        await subject.until(lambda: sessions._streams["a" * 32].goodbye)
        session.drop()
        await subject.until(lambda: sessions.table.owner("a" * 32) is None)
        assert sessions.table.next_expiry is None


async def test_the_grace_runs_by_itself() -> None:
    async with serving_worker(clock=time.monotonic, session_grace_seconds=0.05) as subject:
        session = await subject.session("a" * 32)
        live = subject.client.start(ENDLESS, session_id="a" * 32)
        await subject.until(lambda: subject.runner.slots.held == 1)
        session.drop()
        assert (await live.finish()).reason == "SESSION_LOST"


async def test_what_is_told_of_sessions() -> None:
    offered = ["sessions", "session-runs"]
    async with serving_worker(session_grace_seconds=7.0, late_cancel_seconds=11.0) as subject:
        described = await subject.client.describe()
        assert (described.session_grace_seconds, list(described.capabilities)) == (7.0, offered)
        session = await subject.session("a" * 32)
        opened = session.opened
        assert opened is not None
        assert (opened.instance, list(opened.capabilities)) == (subject.server.instance, offered)
        assert (opened.session_grace_seconds, opened.late_cancel_seconds) == (7.0, 11.0)
        session.drop()


# Stress of one stream, and the ends of processes.


async def test_answers_that_are_not_read_hold_up_their_own_stream_only() -> None:
    async with serving_worker() as subject:
        run = await subject.replied("a" * 32)
        clogged = await subject.session("a" * 32)
        ids = [new_id() for _ in range(1024)]

        async def flood() -> None:
            while True:
                await clogged.send(confirm=pb.Confirm(request_ids=ids))

        with pytest.raises(TimeoutError):  # it is held up
            await asyncio.wait_for(flood(), 1)
        async with grpc.aio.insecure_channel(
            subject.server.address, options=(*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        ) as channel:
            stub = env_service_pb2_grpc.EnvServiceStub(channel)  # type: ignore[no-untyped-call]
            successor = await SessionStream(stub, subject.history).open("a" * 32, 2)
            assert await successor.confirm(run) == ["CONFIRMED"]
            assert await successor.goodbye() == ("OK", "")
        clogged.drop()


async def test_a_stopping_worker_confirms_until_its_last_window_is_closed() -> None:
    async with serving_worker(drain_seconds=600, linger_seconds=600) as subject:
        session = await subject.session("a" * 32)
        run = await subject.replied("a" * 32)
        stopping = asyncio.create_task(subject.stop())
        await within(subject.runner.wait_until(lambda: subject.runner.draining))
        assert await session.confirm(run) == ["CONFIRMED"]
        assert await session.status() == ("UNAVAILABLE", "DRAINING")
        assert await stopping == []
        assert subject.server.sessions.table.next_expiry is not None, "no session is lost by that"


CHILD = """
import sys, threading
import grpc
from envtrio.v1 import env_service_pb2 as pb, env_service_pb2_grpc
address, run, session = sys.argv[1:]
stub = env_service_pb2_grpc.EnvServiceStub(grpc.insecure_channel(address))
def frames():
    yield pb.SessionRequest(open=pb.SessionOpen(session_id=session, epoch=1, protocol_generation=1))
    threading.Event().wait()
responses = stub.Session(frames())
assert next(responses).HasField("opened")
task = {"environment": "synthetic", "task_json": '{"turns": 1}', "protocol_generation": 1}
request = pb.RunRequest(request_id=run, session_id=session, **task)
*_, last = stub.Run(request)
print("replied" if last.HasField("reply") else "no reply", flush=True)
threading.Event().wait()
"""


async def test_a_client_killed_before_it_confirmed_leaks_nothing() -> None:
    async with serving_worker(clock=time.monotonic) as subject:
        run, history = new_id(), subject.history
        subject.client.runs.append(run)
        subject.client.asked += 1
        history.note(Asked, run)
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CHILD, subject.server.address, run, "a" * 32),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert child.stdout is not None
            assert await asyncio.wait_for(child.stdout.readline(), 20) == b"replied\n"
            assert subject.runner.table.open_windows == 1
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()
        killed = time.monotonic()
        history.note(Ended, run, code="KILLED")
        await subject.until_discarded(run)
        assert time.monotonic() - killed < 5
        assert subject.discards(run) == 1
