"""Local workers: real processes, a clock that stands still."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import TYPE_CHECKING

import psutil

from env_broker.backoff import restart_delay
from env_broker.local_worker import LocalWorker
from env_broker.log_tail import MAX_LINE_BYTES, LogTail
from env_broker.supervisor import Bounds, Supervisor
from tests.helpers.clock import FakeClock
from tests.helpers.snapshot import alive

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

FOREVER = "import signal; print('up', flush=True); signal.pause()"
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
)
PATIENCE = 10


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


class Changes:
    """Counts them, and lets a test wait for one that makes something true."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self._event.set()

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not true():
                self._event.clear()
                await self._event.wait()


async def until_logged(caplog: pytest.LogCaptureFixture, words: str) -> None:
    """Wait until something was logged."""
    async with asyncio.timeout(PATIENCE):
        while words not in caplog.text:  # noqa: ASYNC110  # a log handler cannot set an event of this loop
            await asyncio.sleep(0)


def test_restarts_back_off() -> None:
    assert [restart_delay(n) for n in range(1, 9)] == [0, 0.5, 1, 2, 4, 8, 15, 15]
    assert restart_delay(10**6) == 15


async def test_a_worker_that_cannot_start_is_reported_and_not_waited_for_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, changes = FakeClock(), Changes()
    command = python("import sys; print('no such environment: x'); sys.exit(2)")
    supervisor = Supervisor(1, clock=clock, on_change=changes)
    supervisor.start(command)
    assert supervisor.hopeful()
    for seconds in (0.5, 1.0):
        await clock.sleepers(1, timeout=PATIENCE)
        assert "exited with code 2" in supervisor.detail()
        clock.advance(seconds)
    await changes.until(lambda: not supervisor.hopeful())
    assert "before it registered; its last lines: no such environment: x" in supervisor.detail()
    for when in ("at once", "in 0.5 s", "in 1 s"):
        assert f"slot=0 tries again {when}: {supervisor.detail().partition(' after ')[0]}" in caplog.text
    assert caplog.text.count("no such environment: x") == 3
    (view,) = supervisor.views()
    assert (view.state, view.condition) == ("WAITING", "it is started again in 1 s")
    await supervisor.stop()
    assert supervisor.pids == []


async def test_a_command_that_does_not_exist_is_reported() -> None:
    clock, changes = FakeClock(), Changes()
    supervisor = Supervisor(1, clock=clock, on_change=changes)
    supervisor.start(["/nonexistent/program"])
    await clock.sleepers(1, timeout=PATIENCE)
    assert "could not be started" in supervisor.detail()
    await supervisor.stop()


async def test_a_worker_that_dies_is_restarted_and_its_last_words_are_known(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    clock, changes = FakeClock(), Changes()
    worker = LocalWorker(3, python(FOREVER), clock, changes)
    caplog.set_level(logging.INFO)
    task = asyncio.create_task(worker.run())
    await until_logged(caplog, "started")
    first = worker.pid
    async with asyncio.timeout(PATIENCE):
        while "[worker 3] up" not in capfd.readouterr().err:  # noqa: ASYNC110  # it is written by a task here
            await asyncio.sleep(0)
    assert first is not None
    assert worker.registered(psutil.Process(first).environ()["ENV_WORKER_LOCAL_SLOT"], "instance-1")
    assert not worker.hopeful
    asked = asyncio.create_task(worker.last_words("instance-1", PATIENCE))
    await asyncio.sleep(0)
    worker.signal(signal.SIGKILL)
    assert "was killed by SIGKILL" in await asked
    assert "its last lines: up" in await asked
    await changes.until(lambda: worker.hopeful)
    assert "was killed by SIGKILL" in await worker.last_words("instance-1", PATIENCE)
    assert await worker.last_words("another", PATIENCE) == ""
    async with asyncio.timeout(PATIENCE):
        while worker.pid in (None, first):  # noqa: ASYNC110  # the restart tells nobody
            await asyncio.sleep(0)
    worker.stop()
    await asyncio.wait_for(task, PATIENCE)
    assert worker.pid is None


async def test_a_worker_that_was_steady_is_restarted_at_once() -> None:
    clock, changes = FakeClock(), Changes()
    worker = LocalWorker(0, python(FOREVER), clock, changes)
    task = asyncio.create_task(worker.run())
    pids: list[int] = []
    for _ in range(3):
        async with asyncio.timeout(PATIENCE):
            while worker.pid is None or worker.pid in pids:  # noqa: ASYNC110  # the start tells nobody
                await asyncio.sleep(0)
        pids.append(worker.pid)
        clock.advance(60)
        worker.signal(signal.SIGKILL)
    worker.stop()
    await asyncio.wait_for(task, PATIENCE)
    assert not any(alive(pid) for pid in pids)


async def test_a_worker_that_does_not_stop_is_killed(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    bounds = Bounds(stop=0.1, exit=0.1)
    supervisor = Supervisor(2, clock=FakeClock(), on_change=Changes(), bounds=bounds)
    supervisor.start(python(STUBBORN))
    async with asyncio.timeout(PATIENCE):
        said = ""
        while said.count("up") < 2:
            said += capfd.readouterr().err
            await asyncio.sleep(0)
    pids = supervisor.pids
    await supervisor.stop()
    assert "did not stop within" in caplog.text
    assert caplog.text.count("was killed by SIGKILL") == 2
    assert supervisor.pids == []
    assert not any(alive(pid) for pid in pids)
    assert supervisor.lost == frozenset()  # neither had registered, so neither had anything


async def test_a_process_is_told_its_slot_and_ends_with_its_standard_input() -> None:
    code = "import os, sys; print(os.environ['ENV_WORKER_LOCAL_SLOT'], repr(sys.stdin.read()))"
    worker = LocalWorker(7, python(code), FakeClock(), Changes())
    task = asyncio.create_task(worker.run())
    async with asyncio.timeout(PATIENCE):
        while worker.pid is None:  # noqa: ASYNC110  # the start tells nobody
            await asyncio.sleep(0)
    pid = worker.pid
    task.cancel()  # as when the broker's loop ends: no process is left
    await asyncio.gather(task, return_exceptions=True)
    assert not alive(pid)


async def test_without_workers_there_is_nothing_to_do() -> None:
    supervisor = Supervisor(0, clock=FakeClock(), on_change=Changes())
    supervisor.start(["unused"])
    supervisor.hurry()
    await supervisor.stop()
    assert not supervisor.hopeful()
    assert supervisor.detail() == ""
    assert await supervisor.last_words("0", "x") == ""


def test_a_log_tail_splits_remembers_and_bounds() -> None:
    tail = LogTail(lines=2)
    assert tail.feed(b"one\r\ntwo\nthr") == ["one", "two"]
    assert tail.feed(b"ee\n\xff\n") == ["three", "\ufffd"]
    assert tail.last(5) == ["three", "\ufffd"]
    assert tail.feed(b"x" * (2 * MAX_LINE_BYTES + 1)) == ["x" * MAX_LINE_BYTES] * 2
    assert tail.finish() == ["x"]
    assert tail.finish() == []
    assert tail.last(1) == ["x"]
