"""The rows of the contract of keep and discard, one test each, on a worker that is called over gRPC.

Each is named after its row, holds by either transport, and ends with the oracle. Here are the rows up to
the reply, in test_contract_rows_replied.py those behind it. All that can arrive in all of a run's states
stands in tests/unit/worker/test_runner_states.py.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from env_worker import wire
from env_worker.domain.ledger import State
from env_worker.exit_codes import EXIT_UNFINISHED
from env_worker.port import RunPort
from env_worker.session_run import SessionRun
from tests.helpers.raw_client import connected
from tests.helpers.runner_harness import Stop, within
from tests.helpers.stub_client import StubClient
from tests.helpers.worker_server import SMALL, WorkerSubject, serving_worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_worker.domain import Episode
    from tests.helpers.stub_client import OpenRun, Transport

MIB = 2**20
SESSION = "a" * 32
ENDS = ("cancel", "deadline", "lost caller")
ENDS_OF_ALL = (*ENDS, "lost connection")


async def end(subject: WorkerSubject, run: OpenRun, how: str) -> None:
    """End the run; its caller hears of it at once, unless it hung up itself."""
    if how == "cancel":
        assert await subject.client.cancel(run.run) == "ABORTED"
        assert (await run.finish()).reason == "CANCEL_REQUESTED"
    elif how == "deadline":
        await within(subject.runner.wait_until(lambda: _settled(subject, run.run)))
        outcome = await run.finish()
        assert outcome.code == "DEADLINE_EXCEEDED"
        if subject.client.transport == "session":  # of a Run the caller's own gRPC may be first, without one
            assert outcome.reason == "DEADLINE"
    elif how == "lost caller":
        assert (await run.drop()).code == "CANCELLED"
    else:
        await subject.client.close()
        assert (await run.finish()).code == "CANCELLED"
    await within(subject.runner.wait_until(lambda: _settled(subject, run.run)))


def _settled(subject: WorkerSubject, run: str) -> bool:
    entry = subject.runner.table.get(run)
    return entry is None or entry.settled


def timeout(how: str) -> float:
    return 2.0 if how == "deadline" else 30.0


def leaves(size: int, *keys: str) -> Callable[[Episode], None]:
    """A keep that leaves texts of so many bytes."""

    def keep(episode: Episode) -> None:
        for key in keys:
            episode.traces[0].info[key] = "x" * size

    return keep


async def test_keep_raises(transport: Transport) -> None:
    async with serving_worker(transport=transport) as subject:
        for error in (ValueError("no room"), SystemExit(3), asyncio.CancelledError()):
            run = subject.client.start(SMALL)

            def keep(episode: Episode, error: BaseException = error) -> None:
                raise error

            subject.hook.in_keep[run.run] = keep
            outcome = await run.finish()
            assert (outcome.code, outcome.reason) == ("INTERNAL", "HOOK_FAILED")
            await subject.until_discarded(run.run)
            assert subject.discards(run.run) == 1


@pytest.mark.parametrize("how", ENDS)
async def test_cancelled_while_it_waits_for_a_hook_thread(how: str, transport: Transport) -> None:
    async with serving_worker(transport=transport, hook_threads=1) as subject:
        stop = Stop()
        first = await subject.in_keep(stop)
        second = subject.client.start(SMALL, timeout=timeout(how))
        await subject.until(lambda: bool(subject.runner._threads.free_keep_threads._waiters))
        await end(subject, second, how)
        stop.go()
        assert (await first.finish()).code == "OK"
        assert (subject.keeps(second.run), subject.discards(second.run)) == (0, 0)


@pytest.mark.parametrize("how", ENDS_OF_ALL)
async def test_cancel_deadline_or_lost_caller_while_keep_runs(how: str, transport: Transport) -> None:
    async with serving_worker(transport=transport) as subject:
        stop = Stop()
        run = await subject.in_keep(stop, timeout=timeout(how))
        await end(subject, run, how)
        assert subject.entry(run.run).state is State.KEEPING_ABANDONED
        assert subject.discards(run.run) == 0, "keep runs to its end first"
        stop.go()
        await subject.until_discarded(run.run)
        assert subject.discards(run.run) == 1


@pytest.mark.parametrize("how", ENDS_OF_ALL)
async def test_cancel_deadline_or_lost_caller_after_keep_before_the_reply(
    how: str, transport: Transport
) -> None:
    async with serving_worker(transport=transport) as subject:
        run = subject.client.start(SMALL, timeout=timeout(how))
        subject.hook.in_keep[run.run] = leaves(4 * MIB, "a", "b", "c")  # more than fits on its way unread
        await subject.until_kept(run.run)
        await end(subject, run, how)
        await subject.until_discarded(run.run)
        assert subject.discards(run.run) == 1


@pytest.mark.parametrize("what", ["flush", "reply", "sent"])
async def test_the_final_flush_or_the_reply_cannot_be_encoded_or_sent(
    what: str, monkeypatch: pytest.MonkeyPatch, transport: Transport
) -> None:
    async with serving_worker(transport=transport) as subject:
        run = subject.client.start(SMALL)
        if what == "flush":
            subject.hook.in_keep[run.run] = leaves(65 * MIB, "a")
            outcome = await run.finish()
            assert (outcome.code, outcome.reason) == ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE")
            assert "info" in outcome.metadata["field"]
        elif what == "reply":

            def head(*_: Any, **__: Any) -> None:
                raise ValueError("no head")

            monkeypatch.setattr(wire, "head", head)
            assert (await run.finish()).reason == "INTERNAL"
        else:
            subject.hook.in_keep[run.run] = leaves(4 * MIB, "a", "b", "c")
            await subject.until_kept(run.run)
            await subject.client.close()  # the connection itself is gone
            await run.finish()
        await subject.until_discarded(run.run)
        assert subject.discards(run.run) == 1


@pytest.mark.parametrize("transport", ["run"])
async def test_the_reply_was_written_but_its_stream_ends_not_ok(
    monkeypatch: pytest.MonkeyPatch, transport: Transport
) -> None:
    taken: list[int] = []
    take = RunPort.take

    async def observed_take(port: RunPort[Any]) -> bytes | None:
        data = await take(port)
        taken.append(len(data or b""))
        return data

    monkeypatch.setattr(RunPort, "take", observed_take)
    async with serving_worker(transport=transport) as subject:
        run = subject.client.start(SMALL)
        await taken_back_on_its_way(subject, run, taken)


@pytest.mark.parametrize("transport", ["session"])
async def test_the_reply_was_written_but_its_run_in_a_session_ends_not_ok(
    monkeypatch: pytest.MonkeyPatch, transport: Transport
) -> None:
    taken: list[int] = []
    take = SessionRun.take

    def observed_take(run: SessionRun, size: int) -> bytes:
        taken.append(size)
        return take(run, size)

    monkeypatch.setattr(SessionRun, "take", observed_take)
    async with serving_worker(transport=transport) as subject:
        run = subject.client.start(SMALL)
        subject.client.lane.reading.clear()
        await taken_back_on_its_way(subject, run, taken)


async def taken_back_on_its_way(subject: WorkerSubject, run: OpenRun, taken: list[int]) -> None:
    """Cancel the run while its reply is being written; `taken` are the sizes of what is written of it."""
    subject.hook.in_keep[run.run] = leaves(8 * MIB, "a")
    await subject.until(lambda: bool(taken) and taken[-1] > 8 * MIB)
    assert await subject.client.cancel(run.run) == "ABORTED"
    if subject.client.transport == "session":
        subject.client.lane.reading.set()
    outcome = await run.finish()
    assert outcome.messages[-1].HasField("reply"), "it was on its way"
    assert (outcome.code, outcome.reason) == ("CANCELLED", "CANCEL_REQUESTED")
    await subject.until_discarded(run.run)
    assert subject.discards(run.run) == 1


async def test_the_broker_took_the_reply_and_its_hop_to_the_client_broke(transport: Transport) -> None:
    async with (
        connected() as (broker, _),
        serving_worker(transport=transport, broker=broker.address) as subject,
        StubClient(broker.address, subject.history, transport) as client,
    ):
        await client.until_serving()
        run = client.start(SMALL)
        if transport == "session":
            client.lane.reading.clear()  # what a single run does not read would be covered by its credit
        subject.client.runs.append(run.run)
        subject.client.asked += 1
        subject.hook.in_keep[run.run] = leaves(8 * MIB, "a")
        await within(subject.runner.wait_until(lambda: subject.runner.table.open_windows == 1))
        await run.drop()
        await subject.until_discarded(run.run)
        assert subject.discards(run.run) == 1
        assert await client.cancel(run.run) == "DISCARDED"


@pytest.mark.parametrize("when", ["while keep runs", "after keep", "keep does not end"])
async def test_sigterm_while_keep_runs_or_after_keep_and_before_the_reply(
    when: str, transport: Transport
) -> None:
    patience = 0.1 if when == "keep does not end" else 600.0
    async with serving_worker(
        transport=transport, drain_seconds=0, linger_seconds=0, kill_seconds=patience
    ) as subject:
        stop = Stop()
        if when == "after keep":
            run = subject.client.start(SMALL)
            subject.hook.in_keep[run.run] = leaves(4 * MIB, "a", "b", "c")
            await subject.until_kept(run.run)
        else:
            run = await subject.in_keep(stop)
        stopping = asyncio.create_task(subject.stop())
        assert (await run.finish()).reason == "WORKER_LOST"
        if when == "keep does not end":
            assert await stopping == [run.run[:8]]
            assert subject.server.exit_code == EXIT_UNFINISHED
            # The process would have left by now: what follows is for the test's own tidiness.
            stop.go()
            subject.client.runs.remove(run.run)
            subject.client.asked -= 1
        else:
            stop.go()
            assert await stopping == []
            assert subject.discards(run.run) == 1, "it left after the discard"


async def test_the_environment_raised_before_its_first_trace(transport: Transport) -> None:
    async with serving_worker(transport=transport) as subject:
        outcome = await subject.client.run({}, environment="failing")
        assert (outcome.code, outcome.reason) == ("INTERNAL", "ENVIRONMENT_FAILED")
        assert (subject.keeps(outcome.run), subject.discards(outcome.run)) == (0, 0)
        assert await subject.client.cancel(outcome.run) == "ABORTED"
