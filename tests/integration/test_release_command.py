"""`env-client release` in a pool: a broker whose two local workers keep arrays."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import pytest

from env_client import ArrayClient, ArraysNotFoundError, EnvClient, array_references
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
