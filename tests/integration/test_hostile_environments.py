"""Environments that do what none should, in a worker process: no other run, heartbeat or cancel is harmed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.helpers import oracle
from tests.helpers.history import EnvironmentBegan, EnvironmentEnded
from tests.helpers.scripted_registry import registry
from tests.helpers.snapshot import alive, descendants
from tests.helpers.worker_process import SECONDS, WorkerProcess, worker_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.helpers.gate import Gate
    from tests.helpers.scripted_registry import Lease

LEASE_SECONDS = 5.0
TURN = [["trace"], ["say", 3]]
STOP = ("--drain-seconds", "0", "--linger-seconds", "0", "--kill-seconds", "1")


class Subject(WorkerProcess):
    """A worker process that is registered, and how long its heartbeats let wait."""

    latest_seconds = 0.0

    async def watch_heartbeats(self, lease: Lease) -> None:
        """Acknowledge them, and remember the longest wait."""
        loop = asyncio.get_running_loop()
        while True:
            asked = loop.time()
            await lease.beats_until()
            self.latest_seconds = max(self.latest_seconds, loop.time() - asked)

    async def do(self, deed: str, *, timeout: float | None = SECONDS, **task: Any) -> str:
        """How a run ends that does it."""
        task = {"deed": deed, **task}
        return (await self.client.run(task, environment="hostile", timeout=timeout)).code

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.signal()
        return await self.exit_code()


@asynccontextmanager
async def hostile(directory: Path, *arguments: str) -> AsyncIterator[Subject]:
    """When it ends, the oracle has judged and nobody's heartbeats were late."""
    async with (
        registry() as (broker, address),
        worker_process(directory, "--broker", address, *STOP, *arguments) as process,
    ):
        lease = await broker.lease()
        await lease.register(lease_seconds=LEASE_SECONDS)
        subject = Subject(process.server, process.client, process.pipe)
        beats = asyncio.create_task(subject.watch_heartbeats(lease))
        try:
            yield subject
            assert subject.latest_seconds < LEASE_SECONDS / 2
            history = await subject.pipe.at_rest(subject.client.runs)
            oracle.promises_hold(history, asked=subject.client.asked)
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)


async def test_what_they_do_to_the_loop_and_the_process_harms_no_other_run(
    tmp_path: Path, new_gate: Callable[[], Gate]
) -> None:
    """One worker for all of it: what one has done is there for those that follow."""
    gate = new_gate()
    async with hostile(tmp_path) as subject:
        other = subject.client.start(
            {"script": [*TURN, ["wait", str(gate.path)], ["say", 3]]}, environment="scripted", timeout=None
        )
        await other.next()
        for deed in (
            "fork_and_return",
            "fork_and_await",
            "fork_and_exit",
            "terminate_a_process",
            "stop_the_loop",
            "exit_in_a_thread",
            "take_the_signals",
            "close_the_standard_files",
            "clear_the_variables",
        ):
            assert await subject.do(deed) == "OK", deed
            assert (await subject.client.run({"script": TURN}, environment="scripted")).code == "OK", deed
        assert descendants(subject.server.pid) == {}
        assert (await subject.client.describe()).ready_workers == 1, "nothing of it was taken for a SIGTERM"
        gate.open()
        assert (await other.finish()).code == "OK"
        ran = subject.pipe.history.of(other.run, EnvironmentBegan, EnvironmentEnded)
        assert len(ran) == 2, "nobody went on with it in a child"
        assert await subject.stop() == 0
    assert subject.logged("RuntimeError: thread 1")
    assert not subject.logged("fork_posix"), "nor was the network stopped for a child's sake"


async def test_a_blocked_loop_is_named_and_its_runs_end_at_their_deadlines(
    tmp_path: Path, new_gate: Callable[[], Gate]
) -> None:
    gate = new_gate()
    async with hostile(tmp_path) as subject:
        blocked = subject.client.start({"deed": "block", "gate": str(gate.path)}, environment="hostile")
        await blocked.next()
        waiting = subject.client.start({"script": TURN}, environment="scripted", timeout=None)
        late = await subject.client.run({"script": TURN}, environment="scripted", timeout=0.5)
        assert late.code == "DEADLINE_EXCEEDED"
        assert await subject.client.cancel(blocked.run) == "ABORTED"
        assert (await blocked.finish()).reason == "CANCEL_REQUESTED"
        gate.open()
        assert (await waiting.finish()).code == "OK"
        assert await subject.stop() == 0
    assert subject.logged(f"run={late.run[:8]} reason=DEADLINE"), "the worker knows of it too"


async def test_one_that_swallows_its_cancellation_keeps_its_place_and_nothing_else(tmp_path: Path) -> None:
    async with hostile(tmp_path, "--max-concurrent", "2") as subject:
        run = subject.client.start({"deed": "swallow"}, environment="hostile", timeout=None)
        await run.next()
        assert await subject.client.cancel(run.run) == "ABORTED"
        assert (await run.finish()).reason == "CANCEL_REQUESTED"
        for _ in range(3):
            assert (await subject.client.run({"script": TURN}, environment="scripted")).code == "OK"
        assert await subject.stop() == 0


async def test_what_they_leave_behind_ends_with_the_worker(tmp_path: Path) -> None:
    pids: list[int] = []
    async with hostile(tmp_path) as subject:
        for deed in ("leave_processes", "fork_in_a_thread", "hold_the_exit"):
            file = tmp_path / deed
            assert await subject.do(deed, pids=str(file), timeout=2.0) in ("OK", "DEADLINE_EXCEEDED")
            pids += map(int, file.read_text().split() if file.exists() else ())
        assert len(pids) == 4
        assert [alive(pid) for pid in pids] == [True] * 4
        assert await subject.stop() == 0
        assert not any(map(alive, pids))
    (named,) = subject.logged("left behind")
    assert "4 processes" in named
    assert f"sleep {pids[0]}" in named
