"""Runs that a worker carries in a session's stream have all that those of Run have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from envtrio.v1 import delta_pb2, env_service_pb2, episode_pb2

from env_worker import session_runs
from tests.helpers.held_writes import HeldWrites
from tests.helpers.run_stream import RunStream
from tests.helpers.runner_harness import Stop, within
from tests.helpers.stub_client import new_id
from tests.helpers.worker_server import ENDLESS, SMALL, serving_worker

if TYPE_CHECKING:
    from tests.helpers.run_stream import StreamRun
    from tests.helpers.stub_client import Outcome
    from tests.helpers.worker_server import WorkerSubject


def made(outcome: Outcome) -> list[Any]:
    """What a run's episode holds, without ids and times."""
    episode = outcome.episode
    told: list[Any] = [(episode.head.task_json, episode.head.ok, len(episode.traces))]
    for trace in episode.traces:
        nodes = [episode_pb2.Node.FromString(node.SerializeToString()) for node in trace.nodes]
        for node in nodes:
            node.ClearField("created_unix_nanos")
        told.append((nodes, dict(trace.rewards), dict(trace.metrics)))
    return told


async def test_many_runs_interleaved_in_one_stream_come_out_equal_to_those_of_run() -> None:
    async with serving_worker(max_concurrent=100, max_queue=300) as subject:
        tasks = [
            {"turns": 1 + seed % 4, "tokens_per_turn": 6, "layers": 0, "seed": seed} for seed in range(300)
        ]
        stream = await RunStream(subject).open()
        runs = [stream.start(task, group_id=str(number)) for number, task in enumerate(tasks)]
        outcomes = await stream.finish(*runs)
        assert {outcome.code for outcome in outcomes} == {"OK"}
        assert len(stream.messages) < 900, "they share messages"
        for number in range(0, 300, 10):
            alone = await subject.client.run(tasks[number])
            assert made(alone) == made(outcomes[number])
        assert [subject.keeps(run.run) for run in runs] == [1] * 300
        assert await stream.goodbye() == ("OK", "")


BAD_REQUESTS: dict[str, dict[str, Any]] = {
    "generation": {"protocol_generation": 7},
    "id": {"request_id": "nonsense"},
    "task": {"task_json": "[]"},
    "task key": {"task_json": '{"turns": -1}'},
    "environment": {"environment": "none such"},
    "session": {"session_id": "short"},
    "environment fails": {"environment": "failing"},
}


@pytest.mark.parametrize("fields", BAD_REQUESTS.values(), ids=BAD_REQUESTS)
async def test_what_run_refuses_is_refused_in_a_stream_in_the_same_words(fields: dict[str, Any]) -> None:
    async with serving_worker() as subject:
        stream = await RunStream(subject).open()
        for_run, in_stream = new_id(), new_id()
        by_run = await subject.client.run(SMALL, **{"request_id": for_run, **fields})
        by_stream = await stream.run(SMALL, **{"request_id": in_stream, **fields})
        for outcome in (by_run, by_stream):
            assert outcome.code not in ("OK", "INTERNAL") or fields.get("environment") == "failing"
        said = by_stream.message.replace(in_stream[:8], for_run[:8])
        assert (by_stream.code, by_stream.reason, said) == (by_run.code, by_run.reason, by_run.message)
        assert (by_stream.metadata, by_stream.retry_seconds) == (by_run.metadata, by_run.retry_seconds)
        assert (await stream.run(SMALL)).code == "OK", "the stream goes on"
        stream.drop()


async def test_duplicates_full_queues_and_remembered_cancels_are_told_by_the_runs_end() -> None:
    async with serving_worker(max_concurrent=1, max_queue=0) as subject:
        stream = await RunStream(subject).open()
        first = stream.start(ENDLESS)
        twin = stream.start(ENDLESS)
        await stream.until(lambda: first.admitted)
        [full] = await stream.finish(twin)
        assert (full.code, full.reason, full.retry_seconds) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL", 1.0)
        assert await subject.client.cancel(first.run) == "ABORTED"
        assert (await stream.finish(first))[0].reason == "CANCEL_REQUESTED"
        await within(subject.runner.wait_until(lambda: not subject.runner.slots.held))
        done = await stream.run(SMALL)
        again = stream.start(SMALL)
        stream._frames[-1].open_run.request.request_id = done.run
        assert (await stream.finish(again))[0].reason == "DUPLICATE_REQUEST_ID"
        early = new_id()
        assert await subject.client.cancel(early) == "REMEMBERED"
        assert (await stream.run(SMALL, request_id=early)).reason == "CANCEL_REQUESTED"
        stream.drop()


# The commit point.


async def test_a_late_cancel_discards_once() -> None:
    async with serving_worker() as subject:
        stream = await RunStream(subject).open()
        outcome = await stream.run(SMALL)
        assert outcome.code == "OK"
        assert outcome.messages[-1].HasField("reply")
        assert subject.runner.table.open_windows == 1
        assert await subject.client.cancel(outcome.run) == "DISCARDED"
        await subject.until_discarded(outcome.run)
        assert subject.discards(outcome.run) == 1
        stream.drop()


async def reply_in_write(subject: WorkerSubject, stream: RunStream, held: HeldWrites) -> StreamRun:
    """A run whose reply stands in its write, and which is not settled therefore."""
    run, stop = stream.start(SMALL), Stop()
    subject.hook.in_keep[run.run] = lambda _: stop.block()
    await stream.until(lambda: run.admitted)
    await stop.reached()
    held.hold()
    stop.go()
    await subject.until_kept(run.run)
    await held.reached()
    assert subject.runner.table.open_windows == 0
    return run


async def test_a_stream_that_dies_before_the_reply_is_written_discards_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = HeldWrites(monkeypatch)
    async with serving_worker() as subject:
        stream = await RunStream(subject).open()
        run = await reply_in_write(subject, stream, held)
        stream.drop()
        await subject.until_discarded(run.run)
        assert subject.discards(run.run) == 1
        assert subject.runner.table.open_windows == 0


@pytest.mark.parametrize("confirmed", [False, True])
async def test_a_stream_that_dies_between_settlement_and_end_leaves_the_reply_to_its_window(
    confirmed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_worker() as subject:
        name = "a" * 32
        session = await subject.session(name)
        stream = await RunStream(subject).open()
        monkeypatch.setattr(session_runs, "run_ended", lambda *_: b"")  # it is never written
        run = stream.start(SMALL, session_id=name)
        await stream.until(
            lambda: bool(run.data) and delta_pb2.DeltaStream.FromString(run.data[-1]).HasField("reply")
        )
        await subject.until(lambda: subject.runner.table.open_windows == 1)
        stream.drop()
        await subject.until_away()
        assert subject.discards(run.run) == 0, "the end of the stream means nothing after the settlement"
        if confirmed:
            assert await session.confirm(run.run) == ["CONFIRMED"]
        session.drop()
        await subject.until(lambda: not subject.server.sessions._streams)
        subject.after(3.0)
        await within(subject.runner.wait_hooks())
        assert subject.discards(run.run) == int(not confirmed), "its session was lost"


@pytest.mark.parametrize("how", ["cancel", "leave"])
async def test_an_end_while_the_reply_is_being_written_is_no_ok(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldWrites(monkeypatch)
    async with serving_worker() as subject:
        stream = await RunStream(subject).open()
        run = await reply_in_write(subject, stream, held)
        if how == "cancel":
            assert await subject.client.cancel(run.run) == "ABORTED"
        else:
            entry = subject.entry(run.run)
            stream.leave(run)
            await stream.send()
            await within(subject.runner.wait_until(lambda: entry.settled))
        held.go()
        [outcome] = await stream.finish(run)
        assert outcome.messages[-1].HasField("reply"), "it was on its way"
        assert outcome.code == "CANCELLED"
        assert outcome.reason == ("CANCEL_REQUESTED" if how == "cancel" else "CALLER_LOST")
        await subject.until_discarded(run.run)
        assert subject.discards(run.run) == 1
        stream.drop()


# Sessions.


async def test_a_run_belongs_to_the_session_that_it_names() -> None:
    async with serving_worker() as subject:
        stream = await RunStream(subject).open("e" * 32)
        mine = await subject.session("a" * 32)
        live, own = stream.start(ENDLESS, session_id="a" * 32), stream.start(ENDLESS, session_id="e" * 32)
        await stream.until(lambda: live.admitted and own.admitted)
        mine.drop()
        await subject.until_away()
        subject.after(3)
        assert (await stream.finish(live))[0].reason == "SESSION_LOST"
        assert own.end is None
        late = stream.start(ENDLESS, session_id="a" * 32)
        await stream.until(lambda: late.admitted)
        subject.after(3)
        assert (await stream.finish(late))[0].reason == "SESSION_LOST", "as that of a Run that came late"
        stream.drop()


async def test_confirmations_pass_beside_runs() -> None:
    async with serving_worker() as subject:
        stream = await RunStream(subject).open()
        outcomes = await stream.finish(*(stream.start(SMALL) for _ in range(5)))
        live = stream.start(ENDLESS)
        await stream.until(lambda: live.admitted)
        assert await stream.session.confirm(*(outcome.run for outcome in outcomes)) == ["CONFIRMED"] * 5
        assert subject.runner.table.open_windows == 0
        assert await stream.goodbye() == ("OK", "")


@pytest.mark.parametrize("opens", [False, True])
async def test_answers_go_each_by_itself_to_who_opens_no_runs(
    opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is older than `more` would not see what is in it."""
    held = HeldWrites(monkeypatch)
    async with serving_worker() as subject:
        stream = await RunStream(subject).open()
        if opens:
            await stream.run(SMALL)
        ids, [served] = [new_id() for _ in range(4)], subject.server.sessions._streams.values()
        held.hold()
        for run in ids:
            await stream.session.send(confirm=env_service_pb2.Confirm(request_ids=[run]))
        await held.reached()
        await subject.until(lambda: len(served._outbox._due) == 3)
        held.go()
        answered: list[list[str]] = []
        while sum(map(len, answered)) < len(ids):
            message = await stream.session.read()
            assert message is not None
            frames = (message, *message.more)
            answered.append(
                [answer.request_id for frame in frames for answer in frame.confirm_answers.answers]
            )
        assert answered == ([ids[:1], ids[1:]] if opens else [[run] for run in ids])
        stream.drop()
