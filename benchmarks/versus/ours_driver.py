"""Our side's process: `python -m benchmarks.versus.ours_driver WORKLOAD`. See `driver`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.versus import driver, gauges
from benchmarks.versus.banks import PROMPT
from benchmarks.versus.load import Processes
from env_client import ArrayClient, EnvClient, arrays

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from envtrio.v1.episode_pb2 import Episode

    from benchmarks.versus.workloads import Shape, Workload

PACKAGES: Final = ("grpcio", "protobuf", "numpy", "uvloop")
_ENVIRONMENT: Final = "versus=benchmarks.versus.environment:environment"
_REFERENCES: Final = "training_arrays"
_ROUTING: Final = "routed_experts"
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 20.0
_RUN_SECONDS: Final = 600.0
_FETCHED_AT_ONCE: Final = 16
_SEGMENT_BYTES: Final = 2**16
"""More than what a kept trace takes beside its arrays."""
_QUICK_STOP: Final = ("--drain-seconds", "0.2", "--linger-seconds", "0.2", "--kill-seconds", "10")


class OurSubject:
    """A broker with one worker, and a client in this process."""

    def __init__(self, workload: Workload, client: EnvClient, trainer: ArrayClient, broker: int) -> None:
        self._shape = workload.shape
        self._task = {**asdict(workload.shape), "prompt": PROMPT}
        self._client = client
        self._trainer = trainer
        self._references: list[Any] = []
        workers = tuple(pid for pid in gauges.children(broker) if "env_worker" in gauges.command_line(pid))
        if len(workers) != 1:
            raise RuntimeError(f"the broker has the workers {workers}, expected one")
        self.processes = Processes(os.getpid(), broker, workers)

    async def run(self, number: int, on_delta: Callable[[Any], None]) -> None:
        episode = await self._client.run({**self._task, "number": number}, on_delta=on_delta)
        check(episode, self._shape)
        if self._shape.array_bytes:
            self._references.extend(json.loads(episode.traces[0].info_json[_REFERENCES]))

    async def finish(self, *, fetch: bool) -> None:
        references, self._references = self._references, []
        if not fetch:
            if references:
                await self._trainer.release(*references)
            return
        for start in range(0, len(references), _FETCHED_AT_ONCE):
            some = references[start : start + _FETCHED_AT_ONCE]
            for fetched in await self._trainer.fetch_many(some):
                read(fetched[_ROUTING], self._shape)
            await self._trainer.release(*some)


def check(episode: Episode, shape: Shape) -> None:
    """ValueError unless it is a whole episode of that shape."""
    nodes = episode.traces[0].nodes
    last = nodes[-1]
    logprobs = arrays.logprobs(last)
    tokens = sum(len(node.token_ids) for node in nodes) // arrays.TOKEN_DTYPE.itemsize
    sampled = (len(arrays.token_ids(last)), 0 if logprobs is None else len(logprobs))
    if (
        not episode.head.ok
        or len(nodes) != 2 * shape.turns
        or tokens != shape.turns * shape.tokens
        or sampled != (shape.sampled, shape.sampled)
    ):
        raise ValueError(
            f"the episode is wrong: {len(nodes)} nodes, {tokens} tokens, {sampled}, {episode.head}"
        )


def read(routing: np.ndarray[Any, Any], shape: Shape) -> int:
    """Every byte of it once; ValueError if it is not of that shape."""
    if routing.shape != (shape.turns * shape.tokens, shape.layers, shape.top_k):
        raise ValueError(f"routing has the shape {routing.shape}")
    # As words: summing bytes costs more than reading them.
    return int(np.add.reduce(routing.reshape(-1).view(np.uint64)))


@asynccontextmanager
async def open_subject(workload: Workload) -> AsyncIterator[OurSubject]:
    """Broker, worker and client of a workload, from their start to their end."""
    flags = ["--workers", "1", "--env", _ENVIRONMENT, "--max-concurrent", str(max(64, workload.concurrency))]
    flags += ["--log-level", "warning", *_QUICK_STOP]
    variables = dict(os.environ)
    if workload.keeps:
        flags += ["--hook", "array-keeper"]
        # All of a round, and what is reserved for runs that are under way.
        episodes = workload.ours + 2 * workload.concurrency
        each = workload.shape.array_bytes + _SEGMENT_BYTES
        variables["ENV_WORKER_ARRAY_MEMORY_BYTES"] = str(episodes * each)
    broker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "env_broker", "serve", "--listen", "127.0.0.1:0", *flags),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env=variables,
    )
    try:
        async with (
            EnvClient(await _address(broker), timeout=_RUN_SECONDS) as client,
            ArrayClient() as trainer,
        ):
            await client.wait_until_ready(_START_SECONDS)
            yield OurSubject(workload, client, trainer, broker.pid)
    finally:
        await _end(broker)


async def _address(broker: asyncio.subprocess.Process) -> str:
    assert broker.stdout is not None
    said = b""
    async with asyncio.timeout(_START_SECONDS):
        while line := await broker.stdout.readline():
            if line.startswith(b"listening on "):
                return line.removeprefix(b"listening on ").decode().strip()
            said += line
    raise RuntimeError(f"the broker ended with {await broker.wait()}: {said!r}")


async def _end(broker: asyncio.subprocess.Process) -> None:
    if broker.returncode is None:
        broker.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(broker.wait(), _STOP_SECONDS)
        except TimeoutError:
            broker.kill()
            await broker.wait()


if __name__ == "__main__":
    driver.main(open_subject, PACKAGES)
