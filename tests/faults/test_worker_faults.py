"""What faults of a worker do to its runs, at every moment of their lives."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from env_client import EnvClient, WorkerLostError
from tests.faults.conftest import external_only
from tests.faults.stage import (
    BARE,
    HELD,
    KEEPING,
    QUEUED,
    RUNNING,
    TARGET_SLOTS,
    Cast,
    Stage,
    afterwards,
    outcome,
)
from tests.helpers import oracle
from tests.helpers.fault_matrix import record
from tests.helpers.history import (
    Asked,
    CancelAnswered,
    DiscardBegan,
    Ended,
    EnvironmentBegan,
    KeepBegan,
    KeepReturned,
)
from tests.helpers.killable_pool import DRAIN_SECONDS, REGISTERED, WINDOW_SECONDS
from tests.helpers.pool_watch import watcher
from tests.helpers.stub_client import new_id

if TYPE_CHECKING:
    from tests.helpers.stub_client import Transport


async def test_sigkill(stage: Stage) -> None:
    cast = await stage.begin()
    after: tuple[str, str] | None = None
    mark = stage.target.said_lines
    since = time.monotonic_ns()
    await stage.pool.kill_worker(cast.pid)
    await stage.ended(cast, RUNNING, KEEPING)
    stage.lost(cast, since, RUNNING, KEEPING)
    if stage.local:
        for moment in (RUNNING, KEEPING):
            (end,) = stage.history.of(cast.runs[moment], Ended)
            assert "was killed by SIGKILL" in end.message
            assert "its last lines: " in end.message
            assert "module=env_worker." in end.message
        replaced = await stage.pool.broker.said(REGISTERED, since=mark)
        await stage.takes_runs(since, at_once=TARGET_SLOTS)
        after = replaced[1], replaced[2]
        assert after[0] != cast.lease[0]
    await stage.confirm(cast)  # nobody knows any more
    await stage.go_on(cast)
    await stage.ended(cast, QUEUED)
    if not stage.local:
        await stage.takes_runs(since, at_once=1)
    where = "of the broker's own" if stage.local else "from outside"
    await stage.cancel_all(cast)
    await stage.close_scene(f"SIGKILL of a worker {where}", cast, afterwards(cast.lease, after))


async def lost_while_stopped(stage: Stage, cast: Cast, since: int) -> None:
    """The worker is stopped: what it ran fails, and it gets nothing new."""
    await stage.ended(cast, RUNNING, KEEPING)
    stage.lost(cast, since, RUNNING, KEEPING)
    assert not stage.history.of(cast.runs[QUEUED], EnvironmentBegan)


async def back_again(stage: Stage, cast: Cast) -> tuple[str, str]:
    """The worker goes on: it is told what was given up, and what it kept for that is discarded once."""
    mark, since = stage.target.said_lines, time.monotonic_ns()
    stage.go(cast.pid)
    found = await stage.target.said(REGISTERED, since=mark)
    # What it streams for runs that were given up goes nowhere.
    cast.running.open()
    cast.keeping.open()
    await stage.pool.pipe.seen(cast.runs[KEEPING], DiscardBegan)
    await stage.ended(cast, QUEUED)
    await stage.go_on(cast)
    await stage.takes_runs(since)
    await stage.confirm(cast)
    return found[1], found[2]


async def test_sigstop_past_the_lease(stage: Stage) -> None:
    cast = await stage.begin()
    since = time.monotonic_ns()
    stage.stop(cast.pid)
    # Its caller takes one reply back while nobody answers there.
    assert await stage.stub.cancel(cast.runs[BARE]) == "TOO_LATE"
    assert [a.outcome for a in stage.history.of(cast.runs[BARE], CancelAnswered)] == ["TOO_LATE WORKER_LOST"]
    await lost_while_stopped(stage, cast, since)
    after = await back_again(stage, cast)
    await stage.pool.pipe.seen(cast.runs[BARE], DiscardBegan)
    where = "of the broker's own" if stage.local else "from outside"
    fault = f"SIGSTOP of a worker {where} past its lease, then SIGCONT"
    await stage.cancel_all(cast)
    await stage.close_scene(fault, cast, afterwards(cast.lease, after))


@external_only
async def test_sigstop_past_the_window(stage: Stage) -> None:
    cast = await stage.begin()
    since = time.monotonic_ns()
    stage.stop(cast.pid)
    await lost_while_stopped(stage, cast, since)
    assert await stage.stub.cancel_fully(cast.runs[BARE]) == "TOO_LATE WORKER_LOST"  # for the present
    await asyncio.sleep(WINDOW_SECONDS + 0.5)  # the fault itself: it sleeps longer than any window
    after = await back_again(stage, cast)
    await stage.pool.pipe.seen(cast.runs[BARE], DiscardBegan)  # nobody has asked again
    fault = "SIGSTOP of a worker from outside past lease and window, then SIGCONT"
    await stage.cancel_all(cast)
    await stage.close_scene(fault, cast, afterwards(cast.lease, after))


async def test_sigterm(stage: Stage) -> None:
    cast = await stage.begin()
    mark = stage.target.said_lines
    os.kill(cast.pid, signal.SIGTERM)
    cast.running.open()  # it ends within the drain, and well
    await stage.ended(cast, RUNNING)
    await stage.confirm(cast)
    # The keep takes longer than the drain: its caller hears so then.
    await stage.pool.pipe.seen(cast.runs[KEEPING], Ended, timeout=DRAIN_SECONDS + 5)
    await stage.stub.cancel(cast.runs[BARE])  # it stays for what can still be taken back
    cast.keeping.open()
    await stage.go_on(cast)
    await stage.ended(cast, QUEUED)
    assert stage.history.of(cast.runs[HELD], Ended)[0].code == "OK"
    if stage.local:
        found = await stage.target.said(REGISTERED, since=mark)
        after = found[1], found[2]
        ends = ""
    else:
        ends = f"exit code {await stage.target.ended()}; "
        after = None
    await stage.takes_runs(time.monotonic_ns(), at_once=TARGET_SLOTS + 1 if stage.local else 1)
    where = "of the broker's own" if stage.local else "from outside"
    await stage.cancel_all(cast)
    await stage.close_scene(f"SIGTERM to a worker {where}", cast, ends + afterwards(cast.lease, after))


@pytest.mark.parametrize("transport", ["run", "session"])
@external_only
async def test_sigstop_before_the_reply_was_passed_on(stage: Stage, transport: Transport) -> None:
    """The worker counts its reply as delivered, and nobody has it: what was given up is all that tells."""
    stage.transport = transport
    await stage.renew_stub()
    # More than a client's stream takes that is not read; in a session the run's credit covers the first.
    script = [["trace"], *[["say", 4 * 2**20]] * (2 if transport == "session" else 1)]
    run = stage.stub.start({"script": script}, environment="aim")
    await stage.pool.pipe.seen(run.run, KeepReturned)
    async with watcher(stage.pool.address) as pool:
        await pool.watch().until(lambda view: sum(worker.open_windows for worker in view.workers) == 1)
    (kept,) = stage.history.of(run.run, KeepBegan)
    worker = next(worker for worker in stage.pool.workers.values() if worker.pid == kept.pid)
    mark, marked = worker.said_lines, stage.pool.broker.said_lines
    stage.stop(kept.pid)
    try:
        await stage.pool.broker.said("left, runs given up=1", since=marked)
    finally:
        stage.go(kept.pid)
    await worker.said(REGISTERED, since=mark)
    await stage.pool.pipe.seen(run.run, DiscardBegan)
    ended = await run.finish()
    assert (ended.code, ended.reason) == ("UNAVAILABLE", "WORKER_LOST")
    assert not any(message.HasField("reply") for message in ended.messages)
    assert await stage.stub.cancel(run.run) == "ABORTED"
    story = await stage.pool.pipe.at_rest([run.run])
    oracle.contract_holds(story, asked=1)
    fault = "SIGSTOP of a worker past its lease, its client not reading, then SIGCONT"
    record(fault, "replied to its broker alone", outcome(story, run.run))


@external_only
async def test_sigstop_before_the_reply_was_passed_on_and_then_sigkill_of_the_broker(stage: Stage) -> None:
    """The broker takes to its grave what it gave up: the client's cancel tells the worker, by its next."""
    run = new_id()
    task = {"script": [["trace"], ["say", 4 * 2**20]]}
    stage.history.note(Asked, run)
    async with (
        EnvClient(stage.pool.address, env="aim") as client,
        client.stream(task, request_id=run) as stream,
    ):
        await stage.pool.pipe.seen(run, KeepReturned)
        async with watcher(stage.pool.address) as pool:
            await pool.watch().until(lambda view: sum(worker.open_windows for worker in view.workers) == 1)
        (kept,) = stage.history.of(run, KeepBegan)
        # Either of the two may have got it.
        worker, other = sorted(stage.pool.workers.values(), key=lambda worker: worker.pid != kept.pid)
        mark, marked = worker.said_lines, stage.pool.broker.said_lines
        stage.stop(kept.pid)
        try:
            await stage.pool.broker.said("left, runs given up=1", since=marked)
            with pytest.raises(WorkerLostError) as lost:
                await stream.result()
            stage.history.note(Ended, run, code=lost.value.code, reason=lost.value.reason)
            await stage.pool.kill_broker()
            beside = other.said_lines
            await stage.pool.start()
            await other.said(REGISTERED, since=beside)
        finally:
            stage.go(kept.pid)
        await worker.said(REGISTERED, since=mark)
        await stage.pool.pipe.seen(run, DiscardBegan)
    await stage.renew_stub()
    story = await stage.pool.pipe.at_rest([run])
    oracle.contract_holds(story, asked=1)
    fault = "SIGSTOP of a worker past its lease, SIGKILL of the broker, restarted, then SIGCONT"
    record(fault, "replied to its broker alone", outcome(story, run))
