"""All workers are killed at once, under load."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from typing import TYPE_CHECKING

from tests.faults.stage import AFTERWARDS, NANO, PROMISED_SECONDS, SHORT, until_queued
from tests.helpers import oracle
from tests.helpers.fault_matrix import record
from tests.helpers.gate import Gate
from tests.helpers.history import Ended, EnvironmentBegan
from tests.helpers.killable_pool import killable_pool
from tests.helpers.pools import SCRIPTED
from tests.helpers.stub_client import StubClient

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.killable_pool import KillablePool
    from tests.helpers.stub_client import Outcome

WORKERS, SLOTS = 3, 4
FAULT = f"SIGKILL of {WORKERS} of {WORKERS} workers"
RETURN_SECONDS = 15.0
"""For three new interpreters on a busy machine."""


async def full(client: StubClient, gate: Gate, pool: KillablePool) -> list[asyncio.Task[Outcome]]:
    """As many runs as there are slots, all of them begun, on every worker as many as it may have."""
    task = {"script": [*SHORT, ["wait", str(gate.path)]]}
    runs = [client.start(task, environment="scripted") for _ in range(WORKERS * SLOTS)]
    await asyncio.gather(*(run.next() for run in runs))
    on = [began.pid for run in runs for began in pool.pipe.history.of(run.run, EnvironmentBegan)]
    assert sorted(on.count(pid) for pid in set(on)) == [SLOTS] * WORKERS
    return [asyncio.create_task(run.finish()) for run in runs]


async def test_all_are_killed_under_load(tmp_path: Path) -> None:
    local = ("--workers", str(WORKERS), "--env", SCRIPTED, "--max-concurrent", str(SLOTS))
    with closing(Gate(tmp_path / "gate")) as gate:
        async with (
            killable_pool(tmp_path, *local) as pool,
            StubClient(pool.address, pool.pipe.history) as client,
        ):
            running = await full(client, gate, pool)
            waiting = [client.start({"script": SHORT}, environment="scripted") for _ in range(WORKERS)]
            await until_queued(pool.address, WORKERS)

            since = time.monotonic_ns()
            await asyncio.gather(*map(pool.kill_worker, pool.local_pids))
            for outcome in await asyncio.gather(*running):
                assert (outcome.code, outcome.reason) == ("UNAVAILABLE", "WORKER_LOST")
                assert "was killed by SIGKILL" in outcome.message
                (end,) = pool.pipe.history.of(outcome.run, Ended)
                assert end.seq - since < PROMISED_SECONDS * NANO
            # What waited waits for the new ones.
            assert {(await run.finish()).code for run in waiting} == {"OK"}
            again = await full(client, gate, pool)
            assert time.monotonic_ns() - since < RETURN_SECONDS * NANO
            gate.open(WORKERS * SLOTS)
            assert {outcome.code for outcome in await asyncio.gather(*again)} == {"OK"}
            assert len(pool.local_pids) == WORKERS
            for run in client.runs:
                await client.cancel(run)
            story = await pool.pipe.at_rest(client.runs)
            oracle.contract_holds(story, asked=client.asked)
    record(FAULT, "runs", "`UNAVAILABLE WORKER_LOST`; never kept")
    record(FAULT, "waits in the queue", "`OK`; begun once, on a new worker")
    record(FAULT, AFTERWARDS, f"{WORKERS} new workers")
