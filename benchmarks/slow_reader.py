"""What one client that reads nothing costs the other sixty-three, and the servers' memory.

    python -m benchmarks.slow_reader [--seconds S] [--rounds R] [--clients N]

A broker and a worker, each a process. In turns (without, with, with, without, ...), for S seconds each, N-1
clients run short episodes one after the other, without and with an N-th that has asked for an episode of 128
MiB and reads none of it. Prints the ratios (with over without) of the others' episodes per second, of their
99th-percentile latency and of the servers' CPU for an episode, and the most that broker and worker grew. The
worker holds the episode itself, whoever reads it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from env_client import EnvClient
from tests.helpers.history_pipe import HistoryPipe
from tests.helpers.pools import QUICK_STOP, SCRIPTED, serving
from tests.helpers.snapshot import descendants
from tests.helpers.stub_client import MIB, StubClient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_TASK: Final = {"turns": 4, "tokens_per_turn": 64}
_NODES: Final = 128
_LARGE: Final[dict[str, Any]] = {"script": [["trace"], *[["say", MIB]] * _NODES]}
_WARM_UP_SECONDS: Final = 3.0


@dataclass(frozen=True)
class Phase:
    """What the others got in one phase."""

    episodes_per_second: float
    cpu: float
    """Seconds of both servers for one episode."""
    latencies: list[float]
    """Seconds of each episode."""

    @property
    def p99(self) -> float:
        """Seconds."""
        return statistics.quantiles(self.latencies, n=100)[-1]


async def phase(clients: Sequence[EnvClient], pids: Sequence[int], seconds: float) -> Phase:
    """Each client runs one episode after the other for so long."""
    latencies: list[float] = []
    cpu = -sum(map(cpu_seconds, pids))
    began = time.perf_counter()

    async def lane(client: EnvClient) -> None:
        while (start := time.perf_counter()) < began + seconds:
            await client.run(_TASK)
            latencies.append(time.perf_counter() - start)

    await asyncio.gather(*map(lane, clients))
    took = time.perf_counter() - began
    cpu += sum(map(cpu_seconds, pids))
    return Phase(len(latencies) / took, cpu / len(latencies), latencies)


def cpu_seconds(pid: int) -> float:
    """What the process has used."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def unread(
    address: str, pipe: HistoryPipe, clients: Sequence[EnvClient], pids: Sequence[int], seconds: float
) -> Phase:
    """The same beside a client that reads nothing meanwhile, and everything afterwards."""
    async with StubClient(address, pipe.history) as idle:
        run = idle.start(_LARGE, environment="scripted", timeout=None)
        others = await phase(clients, pids, seconds)
        outcome = await run.finish()
        if outcome.code != "OK" or outcome.received_bytes < _NODES * MIB:
            raise RuntimeError(f"what was not read for {seconds:g} s came as {outcome}")
    return others


async def growth(pids: dict[str, int], most: dict[str, float]) -> None:
    """Note the most that each has grown, in MiB, until cancelled."""
    began = {name: psutil.Process(pid).memory_info().rss for name, pid in pids.items()}
    while True:
        for name, pid in pids.items():
            grown = (psutil.Process(pid).memory_info().rss - began[name]) / MIB
            most[name] = max(most.get(name, 0.0), grown)
        await asyncio.sleep(0.5)


async def benchmark(seconds: float, rounds: int, count: int, directory: Path) -> None:
    """Run it, and print what came out."""
    pipe = HistoryPipe(directory / "history")
    arguments = ("--workers", "1", "--max-concurrent", str(count), "--env", "synthetic", "--env", SCRIPTED)
    async with AsyncExitStack() as stack:
        stack.callback(pipe.close)
        quiet = ("--log-level", "warning")
        server = serving("env_broker", *arguments, *QUICK_STOP, *quiet, variables=pipe.variables)
        broker = await stack.enter_async_context(server)
        clients = [
            await stack.enter_async_context(EnvClient(broker.address, env="synthetic", timeout=120.0))
            for _ in range(count - 1)
        ]
        await clients[0].wait_until_ready(60.0)
        [worker] = descendants(broker.pid)
        pids = (broker.pid, worker)
        await phase(clients, pids, _WARM_UP_SECONDS)
        phases: dict[str, list[Phase]] = {"without": [], "with": []}
        most: dict[str, float] = {}
        for name in [name for number in range(rounds) for name in sorted(phases, reverse=number % 2 == 0)]:
            if name == "without":
                result = await phase(clients, pids, seconds)
            else:
                watch = asyncio.create_task(growth({"broker": broker.pid, "worker": worker}, most))
                result = await unread(broker.address, pipe, clients, pids, seconds)
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
            phases[name].append(result)
            print(
                f"{name:8} {result.episodes_per_second:8.1f} episodes/s, p99 {1000 * result.p99:7.1f} ms, "
                f"servers' CPU {1000 * result.cpu:6.2f} ms an episode",
                flush=True,
            )
    measures: dict[str, Callable[[Phase], float]] = {
        "episodes/s": lambda result: result.episodes_per_second,
        "p99 latency": lambda result: result.p99,
        "CPU an episode": lambda result: result.cpu,
    }
    mean = {
        name: [statistics.mean(map(of, results)) for of in measures.values()]
        for name, results in phases.items()
    }
    ratios = (
        f"{name} x{beside / alone:.3f}"
        for name, beside, alone in zip(measures, mean["with"], mean["without"], strict=True)
    )
    print(f"with / without: {', '.join(ratios)}")
    grown = ", ".join(f"{name} {mebibytes:.1f} MiB" for name, mebibytes in most.items())
    print(f"most growth: {grown}, of which the worker's episode {_NODES} MiB")


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each phase")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--clients", type=int, default=64)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(benchmark(arguments.seconds, arguments.rounds, arguments.clients, Path(directory)))


if __name__ == "__main__":
    main()
