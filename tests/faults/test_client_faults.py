"""What a client's death, sleep, cancel or deadline does to its runs, at every moment of their lives."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from tests.faults.conftest import external_only
from tests.faults.stage import (
    BARE,
    BESIDE,
    CONFIRMED,
    HELD,
    KEEPING,
    QUEUED,
    RUNNING,
    SHORT,
    afterwards,
)
from tests.helpers.burial import bury
from tests.helpers.history import CancelAnswered, DiscardBegan, Ended, EnvironmentBegan, EnvironmentEnded
from tests.helpers.killable_pool import leases

if TYPE_CHECKING:
    from tests.faults.stage import Stage


@external_only
async def test_sigkill(stage: Stage) -> None:
    cast = await stage.begin()
    await stage.client.kill()
    for moment in (QUEUED, RUNNING, KEEPING, HELD):
        bury(stage.history, cast.runs[moment])
    # Its session does not come back in its grace: what it has not confirmed is taken back.
    await stage.pool.pipe.seen(cast.runs[HELD], DiscardBegan)
    ended = await stage.pool.pipe.seen(cast.runs[RUNNING], EnvironmentEnded)
    assert isinstance(ended, EnvironmentEnded)
    assert ended.how == "cancelled"
    cast.keeping.open()
    await stage.pool.pipe.seen(cast.runs[KEEPING], DiscardBegan)
    await stage.go_on(cast)
    await stage.takes_runs(time.monotonic_ns())
    assert not stage.history.of(cast.runs[QUEUED], EnvironmentBegan)
    after = afterwards(cast.lease, leases(stage.target)[-1])
    await stage.cancel_all(cast)
    await stage.close_scene("SIGKILL of the client", cast, after)


@external_only
async def test_sigstop(stage: Stage) -> None:
    cast = await stage.begin()
    stage.client.signal(signal.SIGSTOP)
    try:
        # It reads nothing, and all others go on beside it.
        cast.running.open()
        cast.keeping.open()
        await stage.go_on(cast)
        run = await stage.stub.run({"script": SHORT}, environment="scripted", timeout=20.0)
        assert run.code == "OK"
        await stage.stub.cancel(run.run)
        for moment in (QUEUED, RUNNING, KEEPING):
            assert not stage.history.of(cast.runs[moment], Ended)
    finally:
        stage.client.signal(signal.SIGCONT)
    await stage.ended(cast, QUEUED, RUNNING, KEEPING)
    await stage.confirm(cast)
    after = afterwards(cast.lease, leases(stage.target)[-1])
    await stage.cancel_all(cast)
    await stage.close_scene("SIGSTOP of the client, then SIGCONT", cast, after)


@external_only
async def test_cancel(stage: Stage) -> None:
    cast = await stage.begin()
    stage.client.tell(abandon=cast.runs[QUEUED])
    await stage.ended(cast, QUEUED)  # it would begin in a slot that another one's end made free
    for moment in (RUNNING, KEEPING, HELD):
        stage.client.tell(abandon=cast.runs[moment])
    for moment in (BARE, CONFIRMED, BESIDE):
        await stage.stub.cancel(cast.runs[moment])
    await stage.ended(cast, QUEUED, RUNNING, KEEPING, HELD)
    for moment in (QUEUED, RUNNING, KEEPING, HELD):
        await stage.pool.pipe.seen(cast.runs[moment], CancelAnswered)  # the client has sent it
    assert (await cast.bystander.finish()).reason == "CANCEL_REQUESTED"
    await stage.pool.pipe.seen(cast.runs[HELD], DiscardBegan)
    cast.keeping.open()
    await stage.pool.pipe.seen(cast.runs[KEEPING], DiscardBegan)
    await stage.takes_runs(time.monotonic_ns())
    assert not stage.history.of(cast.runs[QUEUED], EnvironmentBegan)
    after = afterwards(cast.lease, leases(stage.target)[-1])
    await stage.cancel_all(cast)
    await stage.close_scene("cancel by the client", cast, after)


@external_only
async def test_deadline(stage: Stage) -> None:
    cast = await stage.begin(timeout=2.0, wait_seconds=1.0)
    await stage.ended(cast, QUEUED, RUNNING, KEEPING, HELD)
    if not stage.history.of(cast.runs[KEEPING], Ended)[0].reason:
        # The client was quicker than the worker, and has told it.
        await stage.pool.pipe.seen(cast.runs[KEEPING], CancelAnswered)
    await stage.pool.pipe.seen(cast.runs[HELD], DiscardBegan)
    cast.keeping.open()
    await stage.pool.pipe.seen(cast.runs[KEEPING], DiscardBegan)
    await stage.go_on(cast)
    await stage.takes_runs(time.monotonic_ns())
    assert not stage.history.of(cast.runs[QUEUED], EnvironmentBegan)
    after = afterwards(cast.lease, leases(stage.target)[-1])
    await stage.cancel_all(cast)
    await stage.close_scene("deadline of the run", cast, after)
