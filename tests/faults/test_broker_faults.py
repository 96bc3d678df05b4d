"""What faults of the broker do to the runs that it carries, at every moment of their lives."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

from tests.faults.conftest import external_only, local_only
from tests.faults.stage import BARE, BESIDE, KEEPING, PROMISED_SECONDS, QUEUED, RUNNING, afterwards
from tests.helpers.history import CancelAnswered, DiscardBegan, Ended, EnvironmentBegan, EnvironmentEnded
from tests.helpers.killable import gone
from tests.helpers.killable_pool import REGISTERED

if TYPE_CHECKING:
    from tests.faults.stage import Cast, Stage


async def broken_off(stage: Stage, cast: Cast) -> None:
    """Every caller hears at once that the broker is gone."""
    await stage.ended(cast, RUNNING, KEEPING, QUEUED)
    await cast.bystander.finish()
    for moment in (RUNNING, KEEPING, QUEUED, BESIDE):
        (end,) = stage.history.of(cast.runs[moment], Ended)
        assert (end.code, end.reason) == ("UNAVAILABLE", ""), (moment, end)


@external_only
async def test_sigkill(stage: Stage) -> None:
    cast = await stage.begin()
    assert await stage.pool.kill_broker() == []
    await broken_off(stage, cast)
    # Late cancels: the client's own for what was broken off, which it repeats; another's, which finds nobody.
    assert (await stage.stub.cancel(cast.runs[BARE])).startswith("UNAVAILABLE")
    workers = [stage.pool.workers[name] for name in ("target", "bystander")]
    for worker in workers:
        worker.signal(signal.SIGSTOP)  # so that the cancels reach the new broker before it knows of any run
    try:
        await stage.pool.start()
        since = time.monotonic_ns()
        await stage.renew_stub()
        assert await stage.stub.cancel(cast.runs[BARE]) == "REMEMBERED"
        await stage.stub.cancel(cast.runs[BESIDE])
    finally:
        marks = [worker.said_lines for worker in workers]
        for worker in workers:
            worker.signal(signal.SIGCONT)
    found, _ = await asyncio.gather(
        *(worker.said(REGISTERED, since=mark) for worker, mark in zip(workers, marks, strict=True))
    )
    assert time.monotonic_ns() - since < PROMISED_SECONDS * 10**9, "workers took too long to come back"
    await stage.pool.pipe.seen(cast.runs[BARE], DiscardBegan)
    cast.running.open()  # what was broken off goes nowhere
    cast.keeping.open()
    await stage.pool.pipe.seen(cast.runs[KEEPING], DiscardBegan)
    await stage.takes_runs(since)
    await stage.confirm(cast)  # by the next stream of its session
    for moment in (RUNNING, KEEPING, QUEUED):
        await stage.pool.pipe.seen(cast.runs[moment], CancelAnswered)
    assert not stage.history.of(cast.runs[QUEUED], EnvironmentBegan)
    after = afterwards(cast.lease, (found[1], found[2]))
    await stage.cancel_all(cast)
    await stage.close_scene("SIGKILL of the broker, restarted on its port", cast, after)


@local_only
async def test_sigkill_with_its_own_workers(stage: Stage) -> None:
    cast = await stage.begin()
    mark = stage.pool.broker.said_lines
    bystander = stage.pool.workers["bystander"]
    beside = bystander.said_lines
    orphans = await stage.pool.kill_broker()
    await broken_off(stage, cast)
    # The worker hears of it too before the keep returns: its reply would be written to nobody, and count.
    await stage.pool.pipe.seen(cast.runs[RUNNING], EnvironmentEnded)
    cast.keeping.open()
    await asyncio.gather(*map(gone, orphans))  # by themselves: they finish the keep, and discard
    # A broker without workers advertises the default window, in which the client would go on asking.
    stage.client.signal(signal.SIGSTOP)
    try:
        await stage.pool.start()
        since = time.monotonic_ns()
        await stage.renew_stub()
        found = await stage.target.said(REGISTERED, since=mark)
        await bystander.said(REGISTERED, since=beside)
        # At once: it remembers what became of its run for two windows, and a busy machine may need longer.
        await stage.stub.cancel(cast.runs[BESIDE])
        await stage.takes_runs(since)
    finally:
        stage.client.signal(signal.SIGCONT)
    await stage.confirm(cast)
    for moment in (RUNNING, KEEPING, QUEUED):
        await stage.pool.pipe.seen(cast.runs[moment], CancelAnswered)
    after = afterwards(cast.lease, (found[1], found[2]))
    await stage.cancel_all(cast)
    await stage.close_scene("SIGKILL of the broker with its own worker, restarted", cast, after)


@external_only
async def test_sigstop(stage: Stage) -> None:
    cast = await stage.begin()
    workers = [stage.pool.workers[name] for name in ("target", "bystander")]
    marks = [worker.said_lines for worker in workers]
    stage.pool.broker.signal(signal.SIGSTOP)
    try:
        for worker, mark in zip(workers, marks, strict=True):
            await worker.said("the lease is over", since=mark)  # they hang up on it
    finally:
        stage.pool.broker.signal(signal.SIGCONT)
    since = time.monotonic_ns()
    found = await stage.target.said(REGISTERED, since=marks[0])
    await stage.ended(cast, RUNNING, KEEPING)
    stage.lost(cast, since, RUNNING, KEEPING)
    cast.running.open()
    cast.keeping.open()
    await stage.pool.pipe.seen(cast.runs[KEEPING], DiscardBegan)
    assert (await cast.bystander.finish()).reason == "WORKER_LOST"
    await stage.ended(cast, QUEUED)
    await stage.confirm(cast)
    await stage.takes_runs(since)
    after = afterwards(cast.lease, (found[1], found[2]))
    await stage.cancel_all(cast)
    await stage.close_scene("SIGSTOP of the broker past the leases, then SIGCONT", cast, after)


@local_only
async def test_sigterm(stage: Stage) -> None:
    cast = await stage.begin()
    stage.pool.broker.signal(signal.SIGTERM)
    await stage.ended(cast, QUEUED)
    cast.running.open()  # it ends within the drain, and well
    await stage.ended(cast, RUNNING)
    await stage.confirm(cast)
    await stage.ended(cast, KEEPING)  # it takes longer than that
    await cast.bystander.finish()
    assert await stage.stub.cancel(cast.runs[BARE]) == "DISCARDED"
    await stage.cancel_all(cast)  # while the keep still holds the broker: the next one knows nothing
    cast.keeping.open()
    await stage.pool.pipe.seen(cast.runs[KEEPING], DiscardBegan)
    code = await stage.pool.broker.ended()
    mark = stage.pool.broker.said_lines
    await stage.pool.start()
    since = time.monotonic_ns()
    await stage.renew_stub()
    await stage.takes_runs(since)
    found = await stage.target.said(REGISTERED, since=mark)
    after = afterwards(cast.lease, (found[1], found[2]))
    fault = "SIGTERM to the broker and its own worker, restarted"
    await stage.close_scene(fault, cast, f"exit code {code}; {after}")
