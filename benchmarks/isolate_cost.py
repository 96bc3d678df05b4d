"""What `--isolate process` costs: episodes a second with it and without it, and their ratio.

    python -m benchmarks.isolate_cost [--seconds S] [--concurrency C] [--rounds R]

Runs synthetic episodes of three kinds with an EnvClient, in turns against a worker without isolation and one
with it, each in a process of its own. Prints the medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from env_client import EnvClient

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MODES: Final = ("none", "process")
_TASKS: Final[Mapping[str, Mapping[str, Any]]] = {
    "small, 10 turns of 200 tokens": {"turns": 10, "tokens_per_turn": 200, "layers": 0, "top_k": 1},
    "38 MB of arrays, 20 turns of 5000 tokens": {
        "turns": 20, "tokens_per_turn": 5000, "layers": 48, "top_k": 8,
    },
    "two seconds long, 10 turns": {"turns": 10, "tokens_per_turn": 200, "turn_seconds": 0.2},
}  # fmt: skip


async def rate(address: str, task: Mapping[str, Any], seconds: float, concurrency: int) -> float:
    """Episodes a second, of those that end within about so many seconds."""
    async with EnvClient(address, env="synthetic") as client:
        await client.run(task)
        started, done = time.perf_counter(), 0

        async def lane() -> None:
            nonlocal done
            while time.perf_counter() - started < seconds:
                await client.run(task)
                done += 1

        await asyncio.gather(*(lane() for _ in range(concurrency)))
        return done / (time.perf_counter() - started)


async def compare(addresses: Mapping[str, str], seconds: float, concurrency: int, rounds: int) -> None:
    """Print one line for each kind of episode."""
    for name, task in _TASKS.items():
        rates: dict[str, list[float]] = {mode: [] for mode in _MODES}
        for number in range(rounds):
            for mode in _MODES if number % 2 else reversed(_MODES):
                rates[mode].append(await rate(addresses[mode], task, seconds, concurrency))
        none, process = (statistics.median(rates[mode]) for mode in _MODES)
        print(
            f"{name}: {none:.1f} episodes/s in process, {process:.1f} isolated, ratio {process / none:.2f}",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one measurement")
    parser.add_argument("--concurrency", type=int, default=8, help="runs at once")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args(arguments)
    command = [sys.executable, "-m", "env_worker", "serve", "--env", "synthetic", "--exit-with-stdin"]
    workers = {
        mode: subprocess.Popen(
            [*command, "--isolate", mode, "--log-level", "error"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for mode in _MODES
    }  # fmt: skip
    try:
        addresses = {
            mode: worker.stdout.readline().removeprefix("listening on ").strip()
            for mode, worker in workers.items()
            if worker.stdout is not None
        }
        asyncio.run(compare(addresses, chosen.seconds, chosen.concurrency, chosen.rounds))
    finally:
        for worker in workers.values():
            worker.communicate()


if __name__ == "__main__":
    main()
