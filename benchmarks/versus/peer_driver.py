"""The peer's process, under its Python: `python -m benchmarks.versus.peer_driver WORKLOAD`. See `driver`.

The pool is the peer's own EnvServerPool, which starts its own EnvServer; the client its own EnvClient.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from benchmarks.versus import driver, gauges
from benchmarks.versus.banks import MODEL, PROMPT
from benchmarks.versus.load import Processes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from benchmarks.versus.workloads import Shape, Workload

PACKAGES: Final = ("verifiers", "pyzmq", "msgpack", "pydantic", "numpy", "uvloop")
_PLUGIN: Final = "envtrio_versus_peer"
_START_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 20.0
_MULTIPLEX: Final = 1024
"""Runs that a worker of the peer's carries at once; more than any workload has."""


class PeerSubject:
    """The peer's pool with one worker, and its client in this process."""

    def __init__(self, workload: Workload, address: str, broker: int) -> None:
        from verifiers.v1.configs.client import EvalClientConfig
        from verifiers.v1.configs.sampling import SamplingConfig
        from verifiers.v1.serve.client import EnvClient
        from verifiers.v1.task import TaskData

        self._shape = workload.shape
        self.client = EnvClient(address)
        self._endpoint = EvalClientConfig(base_url="http://127.0.0.1:1/v1", api_key_var="NO_KEY")
        self._sampling = SamplingConfig()
        self._task = TaskData(prompt=PROMPT).model_dump(mode="json")
        self._broker = broker
        self.processes = Processes(os.getpid(), broker, ())

    def find_worker(self) -> None:
        """It is there once it has played something: the broker answers for its health itself."""
        workers = tuple(
            pid for pid in gauges.children(self._broker) if "spawn_main" in gauges.command_line(pid)
        )
        if len(workers) != 1:
            raise RuntimeError(f"the peer's broker has the workers {workers}, expected one")
        self.processes = Processes(os.getpid(), self._broker, workers)

    async def run(self, number: int, on_delta: Callable[[Any], None]) -> None:
        task = {**self._task, "prompt": f"{number} {PROMPT}"}
        check(await self.client.run(self._endpoint, MODEL, self._sampling, task, on_delta), self._shape)

    async def finish(self, *, fetch: bool) -> None:
        """Its arrays came with the episodes, and went with them."""


def check(episode: Any, shape: Shape) -> None:
    """ValueError unless it is a whole episode of that shape."""
    nodes = episode.traces[0].nodes
    last = nodes[-1]
    tokens = sum(len(node.token_ids) for node in nodes)
    sampled = (len(last.token_ids), len(last.logprobs))
    routing = (shape.sampled, shape.layers, shape.top_k)
    if (
        not episode.ok
        or len(nodes) != 2 * shape.turns
        or tokens != shape.turns * shape.tokens
        or sampled != (shape.sampled, shape.sampled)
        or (shape.array_bytes and last.routed_experts.shape != routing)
    ):
        raise ValueError(
            f"the episode is wrong: {len(nodes)} nodes, {tokens} tokens, {sampled}, {episode.errors}"
        )


@asynccontextmanager
async def open_subject(workload: Workload) -> AsyncIterator[PeerSubject]:
    """Broker, worker and client of a workload, from their start to their end."""
    from verifiers.v1.serve.pool import env_config_data
    from verifiers.v1.utils.loaders import resolve_env_config

    os.environ["ENVTRIO_VERSUS_WORKLOAD"] = workload.name
    quiet()
    config = {"taskset": {"id": _PLUGIN}, "agent": {"runtime": {"type": "subprocess"}}}
    data = env_config_data(resolve_env_config(config))
    spawning = multiprocessing.get_context("spawn")
    told, address = spawning.Pipe(duplex=False)
    # Its other end closes with this process, however that ends.
    death, alive = spawning.Pipe(duplex=False)
    broker = spawning.Process(target=serve_broker, args=(data, address, death))
    broker.start()
    address.close()
    death.close()
    try:
        if not await asyncio.to_thread(told.poll, _START_SECONDS):
            raise TimeoutError(f"the peer's broker said no address within {_START_SECONDS} s")
        assert broker.pid is not None
        subject = PeerSubject(workload, told.recv(), broker.pid)
        try:
            await subject.client.wait_for_server_startup()
            async with asyncio.timeout(_START_SECONDS):
                await subject.run(0, lambda _: None)
            subject.find_worker()
            yield subject
        finally:
            await subject.client.close()
    finally:
        broker.terminate()
        await asyncio.to_thread(broker.join, _STOP_SECONDS)
        if broker.is_alive():
            broker.kill()
            broker.join()
        alive.close()


def serve_broker(data: Any, address: Any, death: Any) -> None:
    """The peer's pool broker, in a process of its own; at most and at least one worker."""
    from verifiers.v1.serve.pool import EnvServerPool, _arm_teardown

    _arm_teardown(death)
    quiet()
    pool = EnvServerPool({"config_data": data}, 1, "tcp://127.0.0.1:0", quiet, _MULTIPLEX, False)
    address.send(pool.address)
    with contextlib.suppress(KeyboardInterrupt):  # what SIGTERM is there
        asyncio.run(pool.run())


def quiet() -> None:
    """Its logs as ours: warnings and worse."""
    logging.basicConfig(level=logging.WARNING)


if __name__ == "__main__":
    driver.main(open_subject, PACKAGES)
