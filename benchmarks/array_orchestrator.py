"""One training step's orchestrator, as a process that measures itself.

    python -m benchmarks.array_orchestrator ADDRESS EPISODES CONCURRENCY TASK_JSON

Runs the episodes and holds them until all are there, as a step does. Prints each episode's array references
as a JSON list on a line, and as the last line what it measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import psutil

from env_client import EnvClient

if TYPE_CHECKING:
    from envtrio.v1.delta_pb2 import TraceDelta
    from envtrio.v1.episode_pb2 import Episode

REFERENCES: Final = "training_arrays"
_LOOK_SECONDS: Final = 0.005


def percentile_99(values: list[float]) -> float:
    """The least value that 99 of 100 do not exceed."""
    return sorted(values)[-(-99 * len(values) // 100) - 1]


class Lag:
    """How late an event loop wakes who sleeps on it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def watch(self) -> None:
        """Note it, until cancelled."""
        while True:
            began = time.perf_counter()
            await asyncio.sleep(_LOOK_SECONDS)
            self.seconds.append(time.perf_counter() - began - _LOOK_SECONDS)


class Received:
    """Counts what arrives."""

    def __init__(self) -> None:
        self.bytes = 0
        self.reference_bytes = 0
        self.references = 0

    def delta(self, delta: TraceDelta) -> None:
        """One arrived."""
        self.bytes += delta.ByteSize()

    def episode(self, episode: Episode) -> list[Any]:
        """It is whole; its references."""
        texts = [trace.info_json[REFERENCES] for trace in episode.traces if REFERENCES in trace.info_json]
        self.reference_bytes += sum(len(text.encode()) for text in texts)
        references = [reference for text in texts for reference in json.loads(text)]
        self.references += len(references)
        return references


async def step(address: str, count: int, concurrency: int, task: dict[str, Any]) -> dict[str, float]:
    """Run it; what was measured."""
    received, lag, process = Received(), Lag(), psutil.Process()
    async with EnvClient(address, env="synthetic", timeout=600.0) as client:
        await client.run({**task, "turns": 1})  # all that is imported and connected once
        resident, cpu, began = process.memory_info().rss, process.cpu_times(), time.perf_counter()
        watching = asyncio.create_task(lag.watch())
        places = asyncio.Semaphore(concurrency)

        async def one(seed: int) -> Episode:
            async with places:
                episode = await client.run({**task, "seed": seed}, on_delta=received.delta)
            if references := received.episode(episode):
                print(json.dumps(references), flush=True)
            return episode

        episodes = await asyncio.gather(*(one(seed) for seed in range(count)))
        took, used = time.perf_counter() - began, process.cpu_times()
        grown = process.memory_info().rss - resident
        watching.cancel()
    return {
        "episodes": len(episodes),
        "seconds": took,
        "cpu_seconds": used.user + used.system - cpu.user - cpu.system,
        "bytes": received.bytes,
        "reference_bytes": received.reference_bytes,
        "references": received.references,
        "grown_bytes": grown,
        "lag_p99_seconds": percentile_99(lag.seconds),
        "lag_most_seconds": max(lag.seconds),
    }


def main() -> None:
    """Read the arguments and run."""
    address, count, concurrency, task = sys.argv[1:]
    measured = asyncio.run(step(address, int(count), int(concurrency), json.loads(task)))
    print(json.dumps({"measured": measured}), flush=True)


if __name__ == "__main__":
    main()
