"""A broker that stops says what it waits for, and does not wait for what cannot hear it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

from env_broker import oversight
from env_broker.exit_code import EXIT_UNFINISHED
from env_broker.farewell import REPORT_SECONDS, Farewell, waited
from env_broker.leftovers import stopped
from env_broker.oversight import MUTE, Oversight
from env_broker.supervisor import Bounds, Supervisor
from tests.helpers.clock import FakeClock
from tests.helpers.snapshot import alive

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

PATIENCE = 10


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110  # a process tells nobody
            await asyncio.sleep(0)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def move(clock: FakeClock, seconds: float) -> None:
    """Let whoever waits wait on, after so much time."""
    await clock.sleepers(1)
    clock.advance(seconds)
    await turns()


async def test_no_wait_is_silent_for_long(caplog: pytest.LogCaptureFixture) -> None:
    clock, said = FakeClock(), ["3 runs"]
    waiting = asyncio.create_task(waited(clock, 25.0, lambda: said[0]))
    for _ in range(2):
        await move(clock, REPORT_SECONDS)
        said[0] = ""  # there is nothing to wait for any more
    assert [record.getMessage() for record in caplog.records] == [
        "the stop waits for 3 runs, for up to 15 s more"
    ]
    assert not waiting.done()
    await move(clock, 5.0)
    await asyncio.wait_for(waiting, PATIENCE)


async def test_a_hurried_wait_has_a_bound_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    clock, never = FakeClock(), asyncio.create_task(asyncio.Event().wait())
    pids = [os.getpid()]
    farewell = Farewell(clock=clock, seconds=100.0, hurried_seconds=15.0, pids=lambda: pids)
    waiting = asyncio.create_task(farewell.wait([never]))  # type: ignore[list-item]
    await move(clock, REPORT_SECONDS)
    farewell.hurry()
    farewell.hurry()
    await turns()
    for seconds in (REPORT_SECONDS, 5.0):
        await move(clock, seconds)
    await asyncio.wait_for(waiting, PATIENCE)
    assert [record.getMessage() for record in caplog.records] == [
        f"the stop waits for local workers pids={pids[0]}, for up to 90 s more",
        f"the stop is hurried: local workers pids={pids[0]} have up to 15 s more",
        f"the stop waits for local workers pids={pids[0]}, for up to 5 s more",
    ]
    never.cancel()
    pids.clear()
    await asyncio.wait_for(farewell.wait([]), PATIENCE)


async def test_a_second_signal_kills_a_worker_that_is_stopped_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bounds = Bounds(stop=1000.0, hurried=1000.0)
    supervisor = Supervisor(1, clock=FakeClock(), on_change=lambda: None, bounds=bounds)
    supervisor.start([sys.executable, "-c", "import signal; signal.pause()"])
    await until(lambda: supervisor.pids)
    (pid,) = supervisor.pids
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: stopped(pid))
    stop = asyncio.create_task(supervisor.stop())
    await asyncio.sleep(0)
    assert alive(pid)
    assert f"pids={pid} (stopped by SIGSTOP" in supervisor._farewell._said()
    supervisor.hurry()
    assert f"pid={pid} worker= is killed: it is stopped" in caplog.text
    await asyncio.wait_for(stop, PATIENCE)
    assert not alive(pid)
    assert "was killed by SIGKILL" in supervisor.detail()
    assert "it is stopped (SIGSTOP), and the broker shall stop at once" in supervisor.detail()
    assert supervisor.lost <= {EXIT_UNFINISHED}


def test_what_a_process_does_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    halted = [False]
    monkeypatch.setattr(oversight, "stopped", lambda pid: halted[0])
    process = Oversight(451, mute_seconds=5.0, leave_seconds=5.0)

    def words(*, leaving: bool = False) -> str:
        return process.words(leaving=leaving)

    assert words() == "process 451 was started"
    assert words(leaving=True) == "process 451 ends"
    process.registered()
    assert words() == words(leaving=True) == ""
    assert process.look(10.0, leased=True, leaving=False) == ""
    process.lost_lease()
    assert words() == ""  # it is about to be found dead, most likely
    assert process.look(10.25, leased=False, leaving=False) == ""
    assert words() == "process 451 runs without a heartbeat, and is killed in 5 s"
    assert process.look(11.0, leased=False, leaving=False) == ""
    assert words() == "process 451 runs without a heartbeat, and is killed in 4 s"
    halted[0] = True
    process.lost_lease()
    assert words().startswith("process 451 is stopped (SIGSTOP)")
    assert process.look(1000.0, leased=False, leaving=False) == ""
    halted[0] = False
    for second in range(1, 5):
        assert process.look(1000.0 + second, leased=False, leaving=False) == ""
    assert words().endswith("is killed in 1 s")
    assert process.look(1005.0, leased=False, leaving=False) == MUTE
    assert words().endswith("is killed in 0 s")
