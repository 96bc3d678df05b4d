"""How a worker process ends: what it waits for, what its exit code says was lost, and what ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from tests.helpers import oracle
from tests.helpers.history import History
from tests.helpers.holding_hook import RELEASED
from tests.helpers.pools import ROOT, serving
from tests.helpers.scripted_registry import registry
from tests.helpers.snapshot import alive, descendants
from tests.helpers.stub_client import StubClient
from tests.helpers.worker_process import HOSTILE, SECONDS, gone, worker_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.helpers.gate import Gate

HOLDING = "tests.helpers.holding_hook:HoldingHook"
TURN = [["trace"], ["say", 3]]
AT_ONCE = ("--drain-seconds", "0", "--linger-seconds", "0", "--kill-seconds", "1")


async def test_a_worker_stays_registered_until_its_arrays_are_released(tmp_path: Path) -> None:
    released = tmp_path / "released"
    async with (
        registry() as (broker, address),
        worker_process(
            tmp_path, "--broker", address, "--late-cancel-seconds", "0.1", "--linger-seconds", "600",
            hook=HOLDING, variables={RELEASED: str(released)},
        ) as subject,
    ):  # fmt: skip
        lease = await broker.lease()
        await lease.register()
        runs = [await subject.client.run({"script": TURN}, environment="scripted") for _ in range(2)]
        assert [run.code for run in runs] == ["OK", "OK"]
        beat = await lease.beats_until(held_arrays=2, running=0, open_windows=0)
        assert beat.held_array_bytes == 2000
        subject.signal()
        await lease.beats_until(draining=True)
        for _ in range(10):
            beat = await lease.beats_until()
            assert beat.held_arrays == 2
        assert re.fullmatch(
            r"drains: SIGTERM; it stays for held training arrays, at most [56]\d\d s more", beat.detail
        )
        assert (await subject.client.describe()).role == "worker", "and it serves its clients"
        released.touch()
        assert await lease.at_end()
        lease.over.set()
        assert await subject.exit_code() == 0
    assert subject.logged("stays up to 600 s", "2 episodes (2000 bytes)")


async def test_arrays_that_nobody_released_are_named_with_exit_code_4(tmp_path: Path) -> None:
    async with worker_process(
        tmp_path, "--linger-seconds", "600", hook=HOLDING, variables={RELEASED: str(tmp_path / "never")}
    ) as subject:
        assert (await subject.client.run({"script": TURN}, environment="scripted")).code == "OK"
        subject.signal()
        await subject.until_draining()
        subject.signal()
        assert await subject.exit_code() == 4
    assert subject.logged("stops (SIGTERM): no run is under way")
    assert subject.logged(
        "reason=ARRAYS_LOST", "1 episodes (1000 bytes), which nobody took out", "second signal"
    )
    assert subject.logged("stopped, lost: the training arrays of 1 episodes (1000 bytes)")
    assert subject.logged("1 replies that could still have been taken back: they count as delivered")


async def test_a_worker_whose_environments_are_blocked_for_too_long_drains_and_says_so(
    tmp_path: Path, new_gate: Callable[[], Gate]
) -> None:
    gate, limits = new_gate(), ("--stuck-seconds", "0.5", "--drain-seconds", "600")
    async with (
        registry() as (broker, address),
        worker_process(tmp_path, "--broker", address, *limits) as subject,
    ):
        lease = await broker.lease()
        await lease.register()
        run = subject.client.start({"deed": "block", "gate": str(gate.path)}, environment="hostile")
        await run.next()
        other = subject.client.start({"script": TURN}, environment="scripted", timeout=None)
        await subject.until_draining()
        while "has blocked" not in (detail := (await lease.beats_until(draining=True)).detail):
            pass
        assert detail.startswith(f"drains: stuck; run {run.run[:8]} has blocked the environments' loop for ")
        assert "pass_blocking" in detail
        subject.signal()
        assert (await other.finish()).reason == "WORKER_LOST"
        assert (await run.finish()).reason == "WORKER_LOST"
        assert await lease.at_end()
        lease.over.set()
        assert await subject.exit_code() == 6
        history = await subject.pipe.at_rest(subject.client.runs)
        oracle.promises_hold(history, asked=subject.client.asked)
    (named,) = subject.logged("reason=STUCK", "level=ERROR")
    assert run.run[:8] in named
    assert "pass_blocking" in named
    assert subject.logged("stops (stuck): 2 runs have 600 s to finish; a second signal ends them at once")
    assert subject.logged("stopped, lost: 2 runs that had begun")


async def test_sigterm_while_no_broker_can_be_reached_drains_and_ends(
    tmp_path: Path, new_gate: Callable[[], Gate]
) -> None:
    gate = new_gate()
    async with worker_process(tmp_path, "--broker", "127.0.0.1:1", "--linger-seconds", "0") as subject:
        task = {"script": [*TURN, ["wait", str(gate.path)]]}
        run = subject.client.start(task, environment="scripted")
        await run.next()
        subject.signal()
        await subject.until_draining()
        gate.open()
        assert (await run.finish()).code == "OK"
        assert await subject.exit_code() == 0
    assert len(subject.logged("cannot register yet")) == 1, "once, as the reason stays the same"
    assert subject.logged("stops (SIGTERM): 1 runs have 30 s to finish")
    assert subject.logged("stopped, nothing was lost")


async def test_a_signal_while_it_ends_changes_nothing(tmp_path: Path) -> None:
    """A pool that hurries sends it twice, and the second may come at any moment."""
    async with worker_process(tmp_path, *AT_ONCE) as subject:
        outcome = await subject.client.run({"deed": "hold_the_exit"}, environment="hostile")
        assert outcome.code == "OK"
        async with asyncio.timeout(SECONDS):
            while subject.server.process.returncode is None:
                # Not by asyncio, which polls the process first, and so may take its end from its own waiter.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(subject.server.pid, signal.SIGTERM)
                ended = asyncio.ensure_future(subject.server.process.wait())
                await asyncio.wait((ended,), timeout=0.01)
        assert await subject.exit_code() == 0


SLOW_TO_LOAD = """
import os, subprocess, time
sleeper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
with open(os.environ["TEST_LOADING"], "w") as pipe:
    pipe.write(f"{sleeper.pid}\\n")
try:
    time.sleep(1000)
except BaseException:  # as some do
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_before_it_serves_ends_it_at_once(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "slow_to_load.py").write_text(SLOW_TO_LOAD)
    loading = tmp_path / "loading"
    os.mkfifo(loading)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "env_worker", "serve", "--env", "slow_to_load:Environment"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "TEST_LOADING": str(loading)},
    )
    try:
        sleeper = int(await asyncio.wait_for(asyncio.to_thread(loading.read_text), SECONDS))
        process.send_signal(number)
        out, err = await asyncio.wait_for(process.communicate(), SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0
    assert out == b""
    assert b"told to stop before it served" in err
    assert b"Traceback" not in err
    assert not alive(sleeper)


async def test_workers_and_what_their_environments_started_end_when_their_broker_is_killed(
    tmp_path: Path, new_gate: Callable[[], Gate]
) -> None:
    """Also while an environment blocks."""
    gate, pids = new_gate(), tmp_path / "pids"
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving("env_broker", "--workers", "1", "--env", HOSTILE))
        client = await stack.enter_async_context(StubClient(server.address, History()))
        await client.until_serving()
        left = await client.run({"deed": "leave_processes", "pids": str(pids)}, environment="hostile")
        assert left.code == "OK"
        blocked = client.start({"deed": "block", "gate": str(gate.path)}, environment="hostile")
        await blocked.next()
        started = {*descendants(server.pid), *map(int, pids.read_text().split())}
        assert len(started) == 4, "the worker and what it left"
        os.kill(server.pid, signal.SIGKILL)
        for pid in started:
            await gone(pid)
        await blocked.finish()
