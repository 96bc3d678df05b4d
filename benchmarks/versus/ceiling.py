"""Our environment with no pool: `python -m benchmarks.versus.ceiling WORKLOAD`, ordered and answering as a
`driver`.

What a pool with one worker could reach if it cost nothing: the environment plays as many episodes at once as
in the worker, on such a loop, and nobody is told. An order's `part` says how far an episode goes:

- `ALONE`: the arrays of each turn are cut and copied, dropped, and it gives way. Nothing here is a pool's.
- `TRACED`: the episode is built, as the worker's records.
- `ENCODED`: that, and all of it is made into the bytes of one delta, as the worker does.
- `OVERWRITTEN`: the trace, and its routing is written by one system call in a thread beside, over that of an
  episode before: what a keeper in shared memory pays at least, where nobody can have mapped the older one.
- `WRITTEN`: that into a file of its own, so the kernel makes and frees its pages: what may be mapped.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from random import Random
from typing import TYPE_CHECKING, Any, Final

from envtrio.v1 import episode_pb2

from benchmarks.versus import gauges
from benchmarks.versus.banks import PROMPT, Banks
from benchmarks.versus.environment import VersusEnvironment, settle
from benchmarks.versus.load import Order
from benchmarks.versus.workloads import ALONE, ENCODED, OVERWRITTEN, TRACED, WORKLOADS, WRITTEN
from env_worker.delta.streamer import DeltaStreamer
from env_worker.domain import Episode, SamplingParams
from env_worker.envs.base import Context
from env_worker.model.simulated import SimulatedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from benchmarks.versus.workloads import Workload

_ID: Final = "0" * 32
_HEAD: Final = episode_pb2.EpisodeHead(episode_id=_ID, environment="versus", task_json="{}", ok=True)
_WRITERS: Final = 4
"""Threads, as many as the worker has for its arrays in memory."""


class Ceiling:
    """Episodes of a workload's shape, in this process."""

    def __init__(self, workload: Workload) -> None:
        self._shape = workload.shape
        self._task = {**asdict(workload.shape), "prompt": PROMPT, "number": 0}
        self._banks = Banks(workload.shape)
        self._environment = VersusEnvironment()
        self._model = SimulatedModel()
        self._writers = ThreadPoolExecutor(_WRITERS)
        self._files: deque[int] = deque()
        self._parts: Mapping[str, Callable[[], Coroutine[Any, Any, object]]] = {
            ALONE: self.alone,
            TRACED: self.traced,
            ENCODED: self.encoded,
            OVERWRITTEN: lambda: self._kept(self._overwrite),
            WRITTEN: lambda: self._kept(write),
        }

    async def play(self, order: Order) -> dict[str, float]:
        """The round's figures; `worker_cpu_ms` is of this process, which stands where the worker would."""
        numbers, part = iter(range(order.episodes)), self._parts[order.part]

        async def slot() -> None:
            for _ in numbers:
                await part()

        free, cpu, began = gauges.free_seconds(), time.process_time(), time.perf_counter()
        await asyncio.gather(*(slot() for _ in range(order.concurrency)))
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        return {
            "seconds": seconds,
            "episodes_per_s": order.episodes / seconds,
            "worker_cpu_ms": cpu * 1e3 / order.episodes,
            "others_percent": gauges.others_percent(seconds, gauges.free_seconds() - free, cpu),
        }

    async def alone(self) -> None:
        """The turns without what is made of them."""
        rng = Random()
        for _ in range(self._shape.turns):
            self._banks.turn(rng)
            await settle(self._shape.yields)

    async def traced(self) -> Episode:
        """The episode that the environment wrote."""
        episode = Episode(_ID, "versus", self._task)
        await self._environment.run(Context(_ID, self._task, SamplingParams(), self._model, episode))
        return episode

    async def encoded(self) -> Episode:
        """The same, and the stream's messages were made."""
        episode = await self.traced()
        for _ in DeltaStreamer(episode).final_messages(_HEAD):
            pass
        return episode

    async def _kept(self, keep: Callable[[list[memoryview]], None]) -> None:
        pieces = routing(await self.traced())
        await asyncio.get_running_loop().run_in_executor(self._writers, keep, pieces)

    def _overwrite(self, pieces: list[memoryview]) -> None:
        """Into a file that is there already: there are as many as threads have written at a time."""
        fd = self._files.pop() if self._files else os.memfd_create("ceiling")
        try:
            _write(fd, pieces)
        finally:
            self._files.append(fd)

    def close(self) -> None:
        """Let go of the threads, and of the files."""
        self._writers.shutdown()
        while self._files:
            os.close(self._files.pop())


def routing(episode: Episode) -> list[memoryview]:
    """All of it, in its order, as views of what the trace holds: without a copy of what was repaired."""
    found = [node.routing for trace in episode.traces for node in trace.nodes]
    return [piece.data for whole in found if whole is not None for piece in whole.pieces(0, len(whole))]


def write(pieces: list[memoryview]) -> None:
    """Into a new file in memory, which is gone when this returns."""
    fd = os.memfd_create("ceiling")
    try:
        _write(fd, pieces)
    finally:
        os.close(fd)


def _write(fd: int, pieces: list[memoryview]) -> None:
    size = sum(piece.nbytes for piece in pieces)
    if (written := os.pwritev(fd, pieces, 0)) != size:
        raise OSError(f"{written} of {size} bytes were written; there is no memory for more")


def main() -> None:
    """Serve the workload that the command line names, until the input ends."""
    ceiling = Ceiling(WORKLOADS[sys.argv[1]])
    gc.collect()
    gc.freeze()  # as the worker does
    try:
        with asyncio.Runner() as runner:
            print(json.dumps({"ready": {"versions": {}}}), flush=True)
            for line in sys.stdin:
                figures = runner.run(ceiling.play(Order(**json.loads(line))))
                print(json.dumps({"figures": figures}), flush=True)
    finally:
        ceiling.close()


if __name__ == "__main__":
    main()
