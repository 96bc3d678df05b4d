"""However a run or its worker ends, nothing that its harnesses have started goes on."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from env_client import EnvError
from tests.extras.verifiers.stage import mark_of, processes, sleeping, stage, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.extras.verifiers.stage import Stage

pytestmark = pytest.mark.timeout(170)

BASH = ["sleep 300", "sleep 301", "sleep 302", "sleep 303"]
"""Of which two have left their session, and one its folder too."""
SLOW = ["sleep 300.0", "sleep 301.0"]


async def running(stage: Stage, env: str, model: str, sleeps: list[str]) -> tuple[asyncio.Task[object], str]:
    """A run, once its tool is at work; and the mark of its worker's harnesses."""
    task: asyncio.Task[object] = asyncio.create_task(stage.client.run({"index": 0}, env=env, model=model))
    await stage.engine.asked.wait()
    stage.engine.asked.clear()
    mark = mark_of(stage.worker)
    await asyncio.to_thread(
        wait_until, lambda: task.done() or set(sleeps) <= set(sleeping(mark)), f"no {sleeps}"
    )
    assert not task.done(), task.result()
    return task, mark


async def cancelled(task: asyncio.Task[object]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("env", "model", "sleeps"),
    [("bash", "bashtool", BASH), ("calc", "slowtool", SLOW)],
    ids=["bash", "tools"],
)
async def test_a_cancel_ends_the_rollout_and_all_that_it_has_started(
    pool: Stage, env: str, model: str, sleeps: list[str]
) -> None:
    task, mark = await running(pool, env, model, sleeps)
    await cancelled(task)
    await asyncio.to_thread(wait_until, lambda: not processes(mark), "processes of a cancelled run are left")


async def test_a_cancel_ends_the_request_to_the_engine(pool: Stage) -> None:
    task = asyncio.create_task(pool.client.run({"index": 0}, env="plain", model="hang"))
    await pool.engine.asked.wait()
    pool.engine.asked.clear()
    assert not pool.engine.disconnected.is_set()
    await cancelled(task)
    async with asyncio.timeout(20):
        await pool.engine.disconnected.wait()
    pool.engine.disconnected.clear()


async def test_a_killed_worker_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    async with stage(tmp_path, "bash", "calc", variables={"HOME": str(tmp_path)}) as made:
        first, mark = await running(made, "bash", "bashtool", BASH)
        second, _ = await running(made, "calc", "slowtool", SLOW)
        folders = tmp_path / ".cache" / "verifiers" / "envtrio"
        assert [one.name for one in folders.iterdir()] == [mark]
        assert glob.glob(f"/tmp/vf-port-*{mark}*")
        [reaper] = [one for one in psutil.Process(made.worker.pid).children() if mark in one.cmdline()]
        made.worker.process.send_signal(signal.SIGKILL)
        for task in (first, second):
            with pytest.raises(EnvError, match="WORKER_LOST"):
                await task
        await asyncio.to_thread(
            wait_until, lambda: not processes(mark), "processes of a killed worker are left"
        )
        await asyncio.to_thread(wait_until, lambda: not reaper.is_running(), "the reaper is left")
        assert list(folders.iterdir()) == []
        assert glob.glob(f"/tmp/vf-port-*{mark}*") == []


async def test_a_worker_that_is_killed_while_its_tools_are_being_started_leaves_none(tmp_path: Path) -> None:
    """Those that serve all runs, which start before any run has."""
    async with stage(tmp_path, "shared", broker=False, variables={"HOME": str(tmp_path)}) as made:
        task = asyncio.create_task(made.client.run({"index": 0}, env="shared"))
        worker = psutil.Process(made.worker.pid)

        def tools() -> list[psutil.Process]:
            children = worker.children(recursive=True)
            return [one for one in children if "vfdemo_shared" in one.cmdline()]

        await asyncio.to_thread(wait_until, lambda: task.done() or tools(), "no tool server is started")
        assert not task.done(), task.result()
        mark = mark_of(made.worker)
        assert processes(mark)
        made.worker.process.send_signal(signal.SIGKILL)
        with pytest.raises(EnvError):
            await task
        await asyncio.to_thread(wait_until, lambda: not processes(mark), "tool servers are left")


async def test_a_stopped_worker_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    async with stage(tmp_path, "bash", broker=False, variables={"HOME": str(tmp_path)}) as made:
        task, mark = await running(made, "bash", "bashtool", BASH)
        made.worker.process.send_signal(signal.SIGTERM)
        with pytest.raises(EnvError):
            await task
        await made.worker.process.wait()
        assert processes(mark) == []
        assert list((tmp_path / ".cache" / "verifiers" / "envtrio").iterdir()) == []
        assert not [line for line in made.worker.log if "left behind" in line and "run left" not in line]
