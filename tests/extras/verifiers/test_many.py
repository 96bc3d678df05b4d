"""A hundred rollouts at once on one worker, each with a process of its own: its heartbeats stay in time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from tests.extras.verifiers.stage import mark_of, processes, stage, wait_until
from tests.helpers.pool_watch import states

if TYPE_CHECKING:
    from pathlib import Path

ROLLOUTS: Final = 100
SECONDS: Final = 550.0
"""They start a hundred interpreters that import the SDK: 1.5 s of processor time each."""
MEMORY: Final = 12 * 2**30


@pytest.mark.timeout(600)
async def test_a_hundred_rollouts_at_once_do_not_hold_up_the_heartbeat(tmp_path: Path) -> None:
    if psutil.virtual_memory().available < MEMORY:
        pytest.skip(f"needs {MEMORY >> 30} GiB of free memory, for the harnesses' processes")
    variables = {"ENV_WORKER_MAX_CONCURRENT": str(ROLLOUTS)}
    async with (
        stage(tmp_path, "plain-train", variables=variables) as pool,
        pool.watching() as watching,
    ):
        first = await watching.watch().next()
        runs = [
            asyncio.create_task(pool.client.run({"index": number % 3}, env="plain-train", timeout=SECONDS))
            for number in range(ROLLOUTS)
        ]
        watch = watching.watch()
        while (await watch.next()).workers[0].running < ROLLOUTS:
            pass
        episodes = await asyncio.gather(*runs)
        assert [episode.head.errors for episode in episodes if not episode.head.ok] == []
        assert all(trace.rewards["right"].HasField("value") for one in episodes for trace in one.traces)
        last = await watching.watch().next()
        assert states(first) == states(last) == ["READY"]
        # A worker that loses its lease registers again.
        assert last.workers[0].registered_at == first.workers[0].registered_at
        mark = mark_of(pool.worker)
        await asyncio.to_thread(wait_until, lambda: not processes(mark), "harnesses are left")
