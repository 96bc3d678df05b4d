"""A run that is ended at each suspension of its own task in turn, whichever awaits there are."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from env_worker.run import Run
from tests.helpers.history import DiscardBegan, KeepBegan
from tests.helpers.runner_harness import Caller, Harness, one_turn, running
from tests.helpers.suspensions import Moment, Suspensions

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_worker.envs.base import Context


def cancelled(harness: Harness, caller: Caller) -> None:
    harness.cancel(caller.id)


def caller_lost(harness: Harness, caller: Caller) -> None:
    assert caller.run is not None
    harness.runner.caller_gone(caller.run)


def stopped(harness: Harness, caller: Caller) -> None:
    harness.runner.stop_runs()


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("end", [cancelled, caller_lost, stopped])
async def test_ended_at_each_suspension(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[Harness, Caller], None], moment: Moment
) -> None:
    carry, reached, kept_and_discarded = Run.carry, 0, 0
    present: list[tuple[Harness, Caller]] = []
    for point in Suspensions(lambda _: end(*present[-1]), moment):
        waits = threading.Event()

        async def driven(run: Run, point: Any = point, waits: threading.Event = waits) -> None:
            # When it has suspended for the first time. Else an environment that is quick, in its thread, has
            # ended before the run can wait for it.
            asyncio.get_running_loop().call_soon(waits.set)
            await point.drive(carry(run))

        async def one_slow_turn(context: Context, waits: threading.Event = waits) -> None:
            await asyncio.to_thread(waits.wait)
            await one_turn(context)

        monkeypatch.setattr(Run, "carry", driven)
        # Leaving it judges the history: settled once, kept is delivered or discarded, never while keep runs.
        async with running() as harness:
            caller = harness.ask(one_slow_turn)
            present.append((harness, caller))
            outcome = await caller.read_on()
            await harness.at_rest()
            keeps = len(harness.history.of(caller.id, KeepBegan))
            discards = len(harness.history.of(caller.id, DiscardBegan))
        if not point.reached:
            assert (outcome, keeps, discards) == ("OK", 1, 0)
        elif outcome != "OK":
            assert keeps == discards
            kept_and_discarded += keeps
        reached += point.reached
    assert reached >= 3, "it waits for its place, for the environment, for keep and for its caller"
    assert kept_and_discarded, "some of those points come after keep began"
