"""How runs in a session's stream end: left, out of time, or with the stream."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING

import pytest
from envtrio.v1 import env_service_pb2 as pb

from env_worker import session_stream
from tests.helpers.held_writes import HeldWrites
from tests.helpers.history import Ended
from tests.helpers.run_stream import RunStream
from tests.helpers.runner_harness import SECONDS, Stop, within
from tests.helpers.stub_client import new_id
from tests.helpers.worker_server import ENDLESS, SMALL, serving_worker

if TYPE_CHECKING:
    from tests.helpers.worker_server import WorkerSubject

# Leaving, deadlines.


@pytest.mark.parametrize("how", ["leave", "deadline", "cancel", "stream"])
async def test_an_end_in_keep_lets_keep_run_to_its_end_and_discards_once(how: str) -> None:
    async with serving_worker() as subject:
        stream, stop = await RunStream(subject).open(), Stop()
        run = stream.start(SMALL, millis=400 if how == "deadline" else None)
        subject.hook.in_keep[run.run] = lambda _: stop.block()
        await stream.send()
        await stop.reached()
        if how == "leave":
            stream.leave(run)
        elif how == "cancel":
            assert await subject.client.cancel(run.run) == "ABORTED"
        if how == "stream":
            stream.drop()
            await within(subject.runner.wait_until(lambda: subject.entry(run.run).settled))
        else:
            [outcome] = await stream.finish(run)
            reason = {"leave": "CALLER_LOST", "deadline": "DEADLINE", "cancel": "CANCEL_REQUESTED"}[how]
            assert outcome.reason == reason
            assert (outcome.code == "DEADLINE_EXCEEDED") is (how == "deadline")
        assert subject.discards(run.run) == 0, "discard was called while keep runs"
        stop.go()
        await subject.until_discarded(run.run)
        assert (subject.keeps(run.run), subject.discards(run.run)) == (1, 1)
        stream.drop()


async def test_left_waiting_running_and_over_each_has_one_end_and_nothing_behind_it() -> None:
    async with serving_worker(max_concurrent=2) as subject:
        stream = await RunStream(subject).open()
        over = stream.start(SMALL)
        await stream.finish(over)
        running, other = stream.start(ENDLESS), stream.start(ENDLESS)
        await stream.until(lambda: running.admitted and other.admitted)
        waiting = stream.start(SMALL)
        for run in (over, waiting, running):
            stream.leave(run)
            stream.leave(run)
            stream.credit(run, 1)
        outcomes = await stream.finish(waiting, running)
        assert [outcome.reason for outcome in outcomes] == ["CALLER_LOST"] * 2
        assert not waiting.admitted
        assert subject.keeps(waiting.run) == 0
        await within(subject.runner.wait_until(lambda: subject.runner.slots.held == 1))
        assert (await stream.run(SMALL)).code == "OK", "the place of the one that was left is free"
        assert other.end is None
        assert await stream.goodbye() == ("OK", "")


@pytest.mark.parametrize("millis", [0, 1, 50])
async def test_a_deadline_counts_while_the_run_waits_too(millis: int) -> None:
    async with serving_worker(max_concurrent=1) as subject:
        stream = await RunStream(subject).open()
        running = stream.start(ENDLESS, millis=millis + 100)
        waiting = stream.start(SMALL, millis=millis)
        forever = stream.start(SMALL, millis=2**64 - 1)
        outcomes = await stream.finish(running, waiting)
        assert [outcome.code for outcome in outcomes] == ["DEADLINE_EXCEEDED"] * 2
        assert [outcome.reason for outcome in outcomes] == ["DEADLINE"] * 2
        assert (await stream.finish(forever))[0].code == "OK"
        stream.drop()


# The end of the stream.


async def carried(subject: WorkerSubject) -> tuple[RunStream, list[str]]:
    """A stream with a run that waits, one that runs, and one that has replied."""
    stream = await RunStream(subject).open()
    replied = await stream.run(SMALL)
    runs = [stream.start(ENDLESS) for _ in range(2)]
    await stream.until(lambda: runs[0].admitted)
    return stream, [runs[0].run, runs[1].run, replied.run]


@pytest.mark.parametrize("how", ["broken", "superseded", "invalid", "half-closed", "goodbye"])
async def test_however_a_stream_ends_its_runs_end_with_it_and_no_others(how: str) -> None:
    async with serving_worker(max_concurrent=3) as subject:
        other = await RunStream(subject).open("f" * 32)
        untouched = other.start(ENDLESS)
        by_run = subject.client.start(ENDLESS)
        await other.until(lambda: untouched.admitted)
        await subject.until(lambda: subject.runner.slots.held == 2)
        stream, runs = await carried(subject)
        entries = [subject.entry(run) for run in runs[:2]]
        if how == "broken":
            stream.drop()
        elif how == "superseded":
            newer = await RunStream(subject).open(epoch=2)
            assert await stream.status() == ("ABORTED", "SESSION_SUPERSEDED")
            assert (await newer.run(SMALL)).code == "OK"
            newer.drop()
        elif how == "invalid":
            await stream.session.send()
            assert await stream.status() == ("INVALID_ARGUMENT", "INVALID_REQUEST")
        elif how == "half-closed":
            await stream.session.call.done_writing()
            assert await stream.status() == ("INVALID_ARGUMENT", "INVALID_REQUEST")
        else:
            assert await stream.goodbye() == ("OK", "")
            reasons = [run.outcome.reason for run in stream.runs.values()]
            assert reasons == ["", "CALLER_LOST", "CALLER_LOST"]
        await within(subject.runner.wait_until(lambda: all(entry.settled for entry in entries)))
        assert [entry.cause and entry.cause.name for entry in entries] == ["CALLER_LOST"] * 2
        assert subject.runner.table.open_windows == 1 + (how == "superseded"), "a reply that left, has left"
        assert untouched.end is None
        assert not subject.entry(by_run.run).settled
        assert (await by_run.drop()).code == "CANCELLED"
        other.drop()


async def test_a_stream_that_dies_behind_any_of_its_messages_leaves_no_run_unsettled() -> None:
    """What ended OK is delivered, unless it is taken back; of the rest nothing is kept."""
    async with serving_worker(max_concurrent=4) as subject:
        ended = set[int]()
        for messages in range(12):
            stream = await RunStream(subject).open(new_id())
            runs = [stream.start(SMALL) for _ in range(6)]
            await stream.until(
                lambda stream=stream, runs=runs, count=messages: (  # type: ignore[misc]
                    len(stream.messages) >= count or all(run.end is not None for run in runs)
                )
            )
            ended.add(sum(run.end is not None for run in runs))
            stream.drop()
            for run in runs:  # as a caller does that has a reply, and no status
                if run.outcome.code != "OK":
                    assert await subject.client.cancel(run.run) in ("ABORTED", "DISCARDED", "REMEMBERED")
            await within(subject.runner.wait_until(lambda: not subject.runner.slots.held))
        assert {0, 6} <= ended
        await within(subject.runner.wait_hooks())
        delivered = subject.runner.table.open_windows
        assert delivered == sum(
            record.code == "OK" for record in subject.history if isinstance(record, Ended)
        )


async def test_what_a_stream_carried_outlives_it_in_nothing() -> None:
    async with serving_worker() as subject:
        stream = await RunStream(subject).open()
        assert (await stream.run(SMALL)).code == "OK"
        live = stream.start(ENDLESS)
        await stream.until(lambda: live.admitted)
        [served] = subject.server.sessions._streams.values()
        seen = [weakref.ref(part) for part in (served, served._runs, served._outbox)]
        del served
        stream.drop()
        await subject.until_away()
        await within(subject.runner.wait_until(lambda: subject.runner.slots.held == 0))
        assert subject.runner.table.open_windows == 1, "what it holds of a reply"

        def collected() -> bool:
            gc.collect()
            return not any(part() for part in seen)

        await subject.until(collected)


async def test_a_stopping_worker_says_how_its_runs_ended_before_it_ends_the_stream() -> None:
    async with serving_worker(drain_seconds=0, linger_seconds=0) as subject:
        stream, runs = await carried(subject)
        running, waiting, _ = runs
        stopping = asyncio.create_task(subject.stop())
        assert await stream.status() == ("UNAVAILABLE", "DRAINING")
        reasons = {run.run: run.outcome.reason for run in stream.runs.values()}
        assert reasons[running] == reasons[waiting] == "WORKER_LOST"
        assert await stopping == []


async def test_a_client_that_half_closes_while_a_worker_says_farewell_has_not_said_goodbye(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_stream, "FAREWELL_SECONDS", SECONDS)
    held = HeldWrites(monkeypatch)
    async with serving_worker(drain_seconds=0, linger_seconds=0) as subject:
        stream = await RunStream(subject).open()
        run = stream.start(ENDLESS)
        await stream.until(lambda: run.admitted)
        [served] = subject.server.sessions._streams.values()
        held.hold()
        stopping = asyncio.create_task(subject.stop())
        await subject.until(lambda: served._finishing)
        await stream.session.call.done_writing()
        await subject.until(served._tasks[0].done)
        held.go()
        assert await stream.status() == ("UNAVAILABLE", "DRAINING")
        assert run.outcome.reason == "WORKER_LOST"
        assert await stopping == []


@pytest.mark.parametrize("goodbye", [False, True], ids=["", "after a goodbye"])
@pytest.mark.parametrize("reads", [True, False])
async def test_what_is_due_when_a_worker_stops_is_for_who_reads_it_and_holds_up_no_stop(
    reads: bool, goodbye: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_stream, "FAREWELL_SECONDS", SECONDS if reads else 0.01)
    held = HeldWrites(monkeypatch)
    async with serving_worker(drain_seconds=0, linger_seconds=0) as subject:
        stream = await RunStream(subject).open()
        runs = [stream.start(ENDLESS) for _ in range(3)]
        await stream.until(lambda: all(run.admitted for run in runs))
        [served] = subject.server.sessions._streams.values()
        held.hold()
        if goodbye:
            await stream.session.send(goodbye=pb.SessionGoodbye())
            await stream.session.call.done_writing()
            await subject.until(lambda: served._finishing)
        stopping = asyncio.create_task(subject.stop())
        await subject.until(served._ended.done)
        if reads:
            for _ in range(100):  # turns of the loop, in which the handler might end the stream
                await asyncio.sleep(0)
            held.go()
            assert await stream.status() == (("OK", "") if goodbye else ("UNAVAILABLE", "DRAINING"))
            reason = "CALLER_LOST" if goodbye else "WORKER_LOST"
            assert [run.outcome.reason for run in runs] == [reason] * 3
        assert await stopping == []
        if not reads:
            assert await stream.status() == ("UNAVAILABLE", "WORKER_LOST"), "DRAINING says that all was told"


async def test_a_draining_worker_finishes_what_has_begun_and_refuses_the_rest() -> None:
    async with serving_worker(drain_seconds=60, linger_seconds=0, max_concurrent=1) as subject:
        stream, stop = await RunStream(subject).open(), Stop()
        keeping = stream.start(SMALL)
        subject.hook.in_keep[keeping.run] = lambda _: stop.block()
        waiting = stream.start(SMALL)
        await stream.send()
        await stop.reached()
        stopping = asyncio.create_task(subject.stop())
        await within(subject.runner.wait_until(lambda: subject.runner.draining))
        late = stream.start(SMALL)
        outcomes = await stream.finish(waiting, late)
        assert [outcome.reason for outcome in outcomes] == ["NOT_ADMITTED", "DRAINING"]
        stop.go()
        assert await stream.status() == ("UNAVAILABLE", "DRAINING")
        assert keeping.outcome.code == "OK", "its end came before that of the stream"
        assert await stopping == []


async def test_served_streams_end_with_their_handlers() -> None:
    """No task of a stream is left when its client is gone in the middle of everything."""
    async with serving_worker() as subject:
        before = len(asyncio.all_tasks())
        stream, _ = await carried(subject)
        stream.start({"mebibytes": 16}, environment="large")
        await stream.send()
        stream.drop()
        await subject.until_away()
        await within(subject.runner.wait_until(lambda: subject.runner.slots.held == 0))
        await subject.until(lambda: len(asyncio.all_tasks()) <= before)
        assert not subject.server.sessions._streams
