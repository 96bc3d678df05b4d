"""What a Runner streams, what it refuses, and whose failure is whose."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pytest
from envtrio.v1 import delta_pb2

from env_worker.domain import InvalidTaskError
from env_worker.status import Refusal
from tests.helpers.history import DiscardBegan, KeepBegan, KeepReturned, Passed
from tests.helpers.runner_harness import Stop, one_turn, running, say, within
from tests.helpers.stub_client import new_id

if TYPE_CHECKING:
    from env_worker.domain import Episode
    from env_worker.envs.base import Context
    from tests.helpers.runner_harness import Harness


def replies(harness: Harness, run: str) -> list[delta_pb2.DeltaStream]:
    return [delta_pb2.DeltaStream.FromString(record.data) for record in harness.history.of(run, Passed)]


# The two error planes.


async def test_an_exception_after_the_first_trace_is_data() -> None:
    async with running() as harness:

        async def play(context: Context) -> None:
            say(context, "so far")
            raise RuntimeError("out of luck " + "y" * 40_000)

        caller = harness.ask(play)
        assert await caller.read_on() == "OK"
        head = replies(harness, caller.id)[-1].reply.head
        assert not head.ok
        (error,) = head.errors
        assert (error.type, error.message[:11]) == ("RuntimeError", "out of luck")
        assert len(error.traceback.encode()) < 17_000
        assert not harness.history.of(caller.id, KeepBegan)[0].ok


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), KeyboardInterrupt()])
async def test_an_exception_before_the_first_trace_fails_the_run(error: BaseException) -> None:
    async with running() as harness:

        async def play(_: Context) -> None:
            raise error

        caller = harness.ask(play)
        assert await caller.read_on() == "ENVIRONMENT_FAILED"
        assert not harness.history.of(caller.id, KeepBegan)
        assert await harness.ask(one_turn).read_on() == "OK", "the environments' loop has survived"


async def test_a_task_that_the_environment_cannot_run_is_the_callers_fault() -> None:
    async with running() as harness:

        async def play(_: Context) -> None:
            raise InvalidTaskError("task key 'turns' is -1, expected 1 or more")

        caller = harness.ask(play)
        assert await caller.read_on() == "INVALID_TASK"
        assert "turns" in caller.port.ending.message  # type: ignore[union-attr]


async def test_a_node_beyond_the_limit_fails_its_own_run() -> None:
    async with running() as harness:

        async def play(context: Context) -> None:
            say(context, "x" * (64 * 2**20 + 1))

        caller, other = harness.ask(play), harness.ask(one_turn)
        assert await caller.read_on() == "MESSAGE_TOO_LARGE"
        ending = caller.port.ending
        assert ending is not None
        assert ending.metadata["limit"] == str(64 * 2**20)
        assert "nodes[0].message" in ending.metadata["field"]
        assert await other.read_on() == "OK"


# Streams and places.


async def test_what_changes_while_a_send_is_blocked_joins_the_next_message() -> None:
    async with running() as harness:
        stop = Stop()
        wrote = Stop()

        async def play(context: Context) -> None:
            say(context, "first")
            await stop.halt()
            for number in range(100):
                say(context, f"turn {number}")
            await wrote.halt()

        caller = harness.ask(play)
        first = await caller.take()
        assert first is not None
        stop.go()
        await wrote.reached()
        caller.write(first)
        second = await caller.take()
        assert second is not None
        assert len(delta_pb2.DeltaStream.FromString(second).deltas[0].append.nodes) == 100
        caller.write(second)
        wrote.go()
        assert await caller.read_on() == "OK"


async def test_nothing_is_diffed_while_keep_runs() -> None:
    async with running() as harness:
        stop = Stop()
        caller = harness.ask(one_turn)

        def keep(episode: Episode) -> None:
            episode.traces[0].info["a"] = 1
            stop.block()
            episode.traces[0].info["b"] = 2

        harness.hook.in_keep[caller.id] = keep
        await stop.reached()
        stop.go()
        assert await caller.read_on() == "OK"
        kept = harness.history.of(caller.id, KeepReturned)[0].seq
        infos = [
            (record.seq > kept, key)
            for record in harness.history.of(caller.id, Passed)
            for delta in delta_pb2.DeltaStream.FromString(record.data).deltas
            for key in sorted(delta.append.info_json)
        ]
        assert infos == [(True, "a"), (True, "b")]


async def test_beyond_the_queue_a_run_is_refused_with_a_time_to_come_again() -> None:
    async with running(max_concurrent=1, max_queue=1) as harness:
        stop = Stop()

        async def play(context: Context) -> None:
            say(context, "x")
            await stop.halt()

        first, second = harness.ask(play), harness.ask(one_turn)
        assert not harness.runner.accepting
        with pytest.raises(Refusal) as refusal:
            harness.ask(one_turn)
        assert refusal.value.reason_name == "QUEUE_FULL"
        assert refusal.value.retry_seconds == 1.0
        stop.go()
        assert [await first.read_on(), await second.read_on()] == ["OK", "OK"]
        await within(harness.runner.wait_accepting(True))


async def test_a_second_run_of_the_same_id_leaves_the_first_alone() -> None:
    async with running() as harness:
        caller = harness.ask(one_turn)
        with pytest.raises(Refusal) as refusal:
            harness.ask(one_turn, request_id=caller.id)
        assert refusal.value.reason_name == "DUPLICATE_REQUEST_ID"
        assert caller.id not in refusal.value.message
        assert await caller.read_on() == "OK"


async def test_a_draining_worker_refuses_and_finishes() -> None:
    async with running() as harness:
        stop = Stop()

        async def play(context: Context) -> None:
            say(context, "x")
            await stop.halt()

        caller = harness.ask(play)
        await stop.reached()
        harness.runner.drain()
        with pytest.raises(Refusal) as refusal:
            harness.ask(one_turn)
        assert refusal.value.reason_name == "DRAINING"
        stop.go()
        assert await caller.read_on() == "OK"


async def test_the_place_of_an_environment_that_does_not_end_stays_taken() -> None:
    async with running(max_concurrent=1) as harness:
        here, stop = Stop(), Stop()

        async def play(context: Context) -> None:
            say(context, "x")
            try:
                await here.halt()
            finally:
                await stop.halt()

        caller = harness.ask(play)
        await here.reached()
        assert harness.cancel(caller.id) == "ABORTED"
        assert await caller.read_on() == "CANCEL_REQUESTED"
        await stop.reached()
        assert harness.runner.slots.held == 1
        other = harness.ask(one_turn)
        stop.go()
        assert await other.read_on() == "OK"


async def test_an_environment_that_is_slow_to_end_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("env_worker.run.SLOW_CANCEL_SECONDS", 0.0)
    here, named = Stop(), threading.Event()

    class Named(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "has not ended" in record.getMessage():
                named.set()

    handler = Named()
    logging.getLogger("env_worker.run").addHandler(handler)
    async with running() as harness:

        async def play(context: Context) -> None:
            say(context, "x")
            try:
                await here.halt()
            finally:
                named.wait(5)

        caller = harness.ask(play)
        await here.reached()
        assert harness.cancel(caller.id) == "ABORTED"
        assert await caller.read_on() == "CANCEL_REQUESTED"
        await within(harness.runner.wait_until(lambda: harness.runner.slots.held == 0))
    logging.getLogger("env_worker.run").removeHandler(handler)
    assert named.is_set()
    assert caller.id not in caplog.text


async def test_a_fault_of_the_worker_itself_discards_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def head(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("env_worker.wire.head", head)
    async with running() as harness:
        caller = harness.ask(one_turn)
        assert await caller.read_on() == "INTERNAL"
        await harness.at_rest()
        assert len(harness.history.of(caller.id, DiscardBegan)) == 1


async def test_full_tables_refuse_runs_and_cancels_with_a_time_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as harness:
        monkeypatch.setattr(harness.runner.table, "_limit", 0)
        monkeypatch.setattr(harness.runner.table, "_remembered_limit", 0)
        for refused in (lambda: harness.ask(one_turn), lambda: harness.runner.cancel(new_id())):
            with pytest.raises(Refusal) as refusal:
                refused()
            assert (refusal.value.reason_name, refusal.value.retry_seconds) == ("TABLE_FULL", 1.0)
        with pytest.raises(Refusal) as refusal:
            harness.runner.cancel("malformed")
        assert refusal.value.reason_name == "INVALID_REQUEST_ID"
