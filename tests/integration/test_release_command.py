"""`env-client release` in a pool: a broker whose two local workers keep arrays."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from env_client import ArrayClient, ArraysNotFoundError, EnvClient, array_references
from env_client import release as release_module
from env_client.release import holders_of_owner, release
from tests.helpers.pool_watch import states, watcher
from tests.helpers.pools import QUICK_STOP, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from typing import Any

TASK = {"turns": 2, "tokens_per_turn": 16}


@pytest.fixture(scope="module")
async def address() -> AsyncIterator[str]:
    """Of the broker."""
    arguments = ("--workers", "2", "--env", "synthetic", "--hook", "array-keeper", *QUICK_STOP)
    async with serving("env_broker", *arguments) as broker:
        async with watcher(broker.address) as watching:
            await watching.watch().until(lambda view: states(view) == ["READY"] * 2)
        yield broker.address


async def kept(address: str, owner: str, episodes: int) -> list[dict[str, Any]]:
    """References of so many episodes, kept by both workers."""
    async with EnvClient(address, env="synthetic", owner=owner) as client:
        done = await asyncio.gather(*(client.run({**TASK, "seed": seed}) for seed in range(episodes)))
    return [found for episode in done for trace in episode.traces for found in array_references(trace)]


async def env_client(*arguments: str) -> tuple[int | None, str, str]:
    """Exit code, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "env_client", *arguments),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, error = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode, out.decode(), error.decode()


async def all_there(references: list[dict[str, Any]]) -> bool:
    """Whether all can be fetched; False if none can."""
    found = set()
    async with ArrayClient() as client:
        for reference in references:
            try:
                await client.fetch(reference)
            except ArraysNotFoundError:
                found.add(False)
            else:
                found.add(True)
    (answer,) = found
    return answer


async def test_of_an_owner_the_arrays_of_all_workers_are_freed_and_no_others(address: str) -> None:
    mine, others = await kept(address, "mine", 6), await kept(address, "another's", 2)
    workers = {reference["instance"] for reference in mine}
    assert len(workers) == 2, "both workers have some"
    code, out, error = await env_client("release", "--broker", address, "--owner", "mine")
    assert (code, error) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 3
    assert all(any(f"worker {name[:8]} at" in line for line in lines) for name in workers)
    assert lines[-1].startswith("total of 2 workers, 0 of which failed: released 6 references, ")
    assert not await all_there(mine)
    assert await all_there(others)
    code, out, _ = await env_client("release", "--broker", address, "--owner", "mine")
    assert (code, out.splitlines()[-1]) == (
        0,
        "total of 2 workers, 0 of which failed: released 0 references, 0 B",
    )


async def test_of_a_file_that_run_wrote(address: str, tmp_path: Path) -> None:
    out_file = tmp_path / "out.jsonl"
    code, _, error = await env_client(
        "run", "--broker", address, "--env", "synthetic", "--count", "4", "--out", str(out_file)
    )
    assert code == 0, error
    lines = [json.loads(line) for line in out_file.read_text().splitlines()]
    references = [
        found for line in lines for trace in line["traces"] for found in trace["info"]["training_arrays"]
    ]
    assert len(references) == 4
    assert await all_there(references)
    code, out, error = await env_client("release", "--episodes", str(out_file))
    assert (code, error) == (0, "")
    assert "0 of which failed: released 4 references, " in out
    assert not await all_there(references)
    code, out, _ = await env_client("release", "--episodes", str(out_file))
    assert code == 0
    assert "released 0 references, 0 B; 4 were not there" in out.splitlines()[-1]


async def test_a_worker_that_is_stopped_past_its_lease_still_holds_what_it_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(release_module, "_CALL_SECONDS", 0.5)
    pool = ("--workers", "1", "--env", "synthetic", "--hook", "array-keeper", *QUICK_STOP)
    lease = ("--heartbeat-seconds", "0.1", "--lease-seconds", "0.5")
    async with serving("env_broker", *pool, *lease) as broker, watcher(broker.address) as watching:
        watch = watching.watch()
        await watch.until(lambda view: states(view) == ["READY"])
        references = await kept(broker.address, "mine", 1)
        view = await watch.until(lambda view: view.workers[0].held_array_bytes)
        held, pid = view.workers[0].held_array_bytes, view.workers[0].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            view = await watch.until(lambda view: states(view) == ["LOST"])
            assert view.workers[0].held_array_bytes == held
            holders = await asyncio.to_thread(holders_of_owner, broker.address, "mine")
            report = io.StringIO()
            assert not await asyncio.to_thread(release, holders, io.StringIO(), report)
            assert "could not be asked, and held " in report.getvalue()
            assert "by its last heartbeat: DEADLINE_EXCEEDED" in report.getvalue()
        finally:
            os.kill(pid, signal.SIGCONT)
        await watch.until(lambda view: states(view) == ["READY"])
        assert await all_there(references)
        holders = await asyncio.to_thread(holders_of_owner, broker.address, "mine")
        assert await asyncio.to_thread(release, holders, io.StringIO(), report)
        assert not await all_there(references)
