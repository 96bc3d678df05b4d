"""What training arrays cost the orchestrator and the broker, and how fast a trainer gets them.

    python -m benchmarks.arrays [--episodes N] [--rounds R] [--mib M] [--table FILE]

1. A broker, a worker with `--hook array-keeper`, an orchestrator that runs a step (256 episodes of 20 turns x
   1,500 tokens x 48 layers x top-8), and a trainer that fetches and releases what it is told of: each a
   process, worker and trainer with a lower priority, as they would not share the orchestrator's cores. In
   turns without and with arrays; the streamed tokens and the hook are the same.
2. One reference of M MiB, read by every way there is; see `array_reader`.

Ratios within one run are what counts. Writes its table as Markdown to FILE.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
import psutil
from envtrio.v1 import env_service_pb2, env_service_pb2_grpc

from benchmarks.array_orchestrator import REFERENCES, percentile_99
from benchmarks.array_reader import FIELD
from env_client import EnvClient, SyncArrayClient
from tests.helpers.pools import QUICK_STOP, serving
from tests.helpers.snapshot import descendants

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB: Final = 2**20
_TURNS: Final = 20
_STEP: Final[dict[str, Any]] = {"turns": _TURNS, "tokens_per_turn": 1500, "top_k": 8, "turn_seconds": 0.05}
_LAYERS: Final = 48
_CONCURRENCY: Final = 16
_LOOK_SECONDS: Final = 0.02
_READER_TURNS: Final = 8
_OTHERS_NICE: Final = 10


HEADER: Final = """<!-- Written by `make bench-arrays`. -->
# Training arrays, measured

Ratios within one run are what counts. The {cores} cores are shared by orchestrator, broker, worker, trainer
and the benchmark: what the first two wait for a core is in their lag.
"""


class BrokerWatch:
    """How long a broker takes to answer, seen from outside, and the most that it grows."""

    def __init__(self, address: str, pid: int) -> None:
        self._address = address
        self._process = psutil.Process(pid)
        self._began = self._process.memory_info().rss
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._failed: Exception | None = None
        self.seconds: list[float] = []
        self.grown = 0

    def __enter__(self) -> BrokerWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._failed is not None:
            raise self._failed

    def _watch(self) -> None:
        try:
            self._look()
        except Exception as error:  # a thread's is nobody's
            self._failed = error

    def _look(self) -> None:
        request = env_service_pb2.DescribeRequest(protocol_generation=1)
        with grpc.insecure_channel(self._address) as channel:
            stub = env_service_pb2_grpc.EnvServiceStub(channel)
            stub.Describe(request)
            while not self._over.wait(_LOOK_SECONDS):
                began = time.perf_counter()
                stub.Describe(request)
                self.seconds.append(time.perf_counter() - began)
                self.grown = max(self.grown, self._process.memory_info().rss - self._began)


async def step(episodes: int, *, layers: int) -> dict[str, float]:
    """One step on fresh processes; what orchestrator, broker and trainer measured."""
    keeper = ("--workers", "1", "--max-concurrent", str(_CONCURRENCY), "--env", "synthetic")
    flags = ("--hook", "array-keeper", "--log-level", "warning", *QUICK_STOP)
    async with serving("env_broker", *keeper, *flags) as broker:
        async with EnvClient(broker.address) as client:
            await client.wait_until_ready(60.0)
        [worker] = descendants(broker.pid)
        task = json.dumps({**_STEP, "layers": layers})
        orchestrator = await _process("array_orchestrator", broker.address, episodes, _CONCURRENCY, task)
        trainer = await _process("array_trainer")
        for pid in (worker, trainer.pid):  # they are other machines' work, and here there may be two cores
            psutil.Process(pid).nice(_OTHERS_NICE)
        measured: dict[str, float] = {}
        with BrokerWatch(broker.address, broker.pid) as watch:
            assert orchestrator.stdout is not None
            assert trainer.stdin is not None
            while line := await orchestrator.stdout.readline():
                if isinstance(said := json.loads(line), dict):
                    measured = said["measured"]
                else:
                    trainer.stdin.write(line)
                    await trainer.stdin.drain()
        trainer.stdin.close()  # Python 3.11's communicate() leaves it open
        assert trainer.stdout is not None
        fetched = json.loads(await trainer.stdout.read())
        await asyncio.gather(trainer.wait(), orchestrator.wait())
    if not measured or fetched["references"] != measured["references"]:
        raise RuntimeError(f"the trainer released {fetched} of what the orchestrator passed on: {measured}")
    return {
        **measured,
        "fetched_bytes": fetched["bytes"],
        "broker_p99_seconds": percentile_99(watch.seconds),
        "broker_most_seconds": max(watch.seconds),
        "broker_grown_bytes": watch.grown,
        "trainer_seconds": fetched["seconds"],
    }


async def _process(name: str, *arguments: object) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"benchmarks.{name}", *map(str, arguments)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=16 * MIB,
    )


def step_table(off: list[dict[str, float]], on: list[dict[str, float]]) -> str:
    """Means without and with arrays, and their ratio."""
    rows = (
        ("bytes that the orchestrator received, references aside (MB)", "net_bytes", 1e6),
        (
            "references that it received beside (kB); without arrays they say that all are absent",
            "reference_bytes",
            1e3,
        ),
        ("memory that the step's episodes take there (MB)", "grown_bytes", 1e6),
        ("its CPU (s)", "cpu_seconds", 1.0),
        ("its event loop's lag, 99th percentile (ms)", "lag_p99_seconds", 1e-3),
        ("its event loop's lag, largest (ms)", "lag_most_seconds", 1e-3),
        ("the broker's growth (MB)", "broker_grown_bytes", 1e6),
        ("the broker's answer to Describe, 99th percentile (ms)", "broker_p99_seconds", 1e-3),
        ("the broker's answer to Describe, largest (ms)", "broker_most_seconds", 1e-3),
        ("the step (s)", "seconds", 1.0),
        ("bytes that the trainer fetched (MB)", "fetched_bytes", 1e6),
        ("time that it took for fetching and releasing them (s)", "trainer_seconds", 1.0),
    )
    lines = ["| | without arrays | with arrays | with / without |", "| --- | --- | --- | --- |"]
    for results in (off, on):
        for result in results:
            result["net_bytes"] = result["bytes"] - result["reference_bytes"]
    for title, key, unit in rows:
        without, beside = (statistics.mean(result[key] for result in results) / unit for results in (off, on))
        ratio = f"{beside / without:.2f}" if without else ""
        lines.append(f"| {title} | {without:.2f} | {beside:.2f} | {ratio} |")
    return "\n".join(lines)


@contextmanager
def raw_socket(size: int) -> Iterator[int]:
    """A process that sends `size` bytes to whoever connects; its port."""
    ready, theirs = socket.create_server(("127.0.0.1", 0)), bytes(range(256)) * (size // 256 + 1)
    pid = os.fork()
    if pid == 0:
        try:
            with memoryview(theirs)[:size] as body:
                while True:
                    connection, _ = ready.accept()
                    with connection:
                        connection.sendall(body)
        finally:
            os._exit(0)
    del theirs
    try:
        yield ready.getsockname()[1]
    finally:
        ready.close()
        os.kill(pid, 9)
        os.waitpid(pid, 0)


async def throughput(mib: int, rounds: int, port: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of each way to read one reference of about `mib` MiB, without and with numpy's huge pages."""
    flags = ("--env", "synthetic", "--hook", "array-keeper", "--log-level", "warning", *QUICK_STOP)
    async with serving("env_worker", *flags) as worker:
        async with EnvClient(worker.address, timeout=600.0) as client:
            tokens = mib * MIB // (_LAYERS * 8) // _READER_TURNS
            episode = await client.run(
                {"turns": _READER_TURNS, "tokens_per_turn": tokens, "layers": _LAYERS, "top_k": 8}
            )
        [reference] = json.loads(episode.traces[0].info_json[REFERENCES])
        results = {}
        for huge in ("0", "1"):
            reader = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.array_reader", str(port), str(rounds)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "NUMPY_MADVISE_HUGEPAGE": huge},
            )
            said, _ = await reader.communicate(json.dumps(reference).encode())
            results[huge] = json.loads(said)
        with SyncArrayClient() as client_of_trainer:
            client_of_trainer.release(reference)
    return results


def throughput_table(results: dict[str, dict[str, list[float]]], size: int) -> str:
    """Medians as GB/s, and the ratios that are asked for."""
    lines = ["| | numpy without huge pages | numpy with huge pages |", "| --- | --- | --- |"]
    median = {
        huge: {way: statistics.median(took) for way, took in ways.items()} for huge, ways in results.items()
    }
    for way in median["0"]:
        lines.append(
            f"| {way} (GB/s) | " + " | ".join(f"{size / 1e9 / median[huge][way]:.2f}" for huge in "01") + " |"
        )
    for over, under in (
        ("stream", "socket"),
        ("stream, async", "socket"),
        ("map and read", "numpy.copy"),
        ("map and read", "stream"),
    ):
        ratios = " | ".join(f"**{median[huge][under] / median[huge][over]:.2f}**" for huge in "01")
        lines.append(f"| {over} / {under} | {ratios} |")
    return "\n".join(lines)


def shared_huge_pages() -> str:
    """Whether this host gives huge pages to shared memory."""
    try:
        said = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled").read_text()
    except OSError:
        return "unknown"
    return said.split("[")[1].split("]")[0]


async def benchmark(episodes: int, rounds: int, mib: int, port: int) -> str:
    """Run all of it; the tables."""
    steps: dict[int, list[dict[str, float]]] = {0: [], _LAYERS: []}
    for number in range(rounds):
        for layers in (0, _LAYERS) if number % 2 == 0 else (_LAYERS, 0):
            result = await step(episodes, layers=layers)
            steps[layers].append(result)
            print(f"{layers} layers: {result['seconds']:.1f} s for {episodes} episodes", flush=True)
    size = mib * MIB // (_LAYERS * 8) // _READER_TURNS * _READER_TURNS * _LAYERS * 8
    reading = await throughput(mib, max(rounds, 5), port)
    return "\n".join(
        (
            f"{episodes} episodes of {_TURNS} turns x {_STEP['tokens_per_turn']} tokens x {_LAYERS} layers x "
            f"top-8, {_CONCURRENCY} at once, means of {rounds} rounds of each:\n",
            step_table(steps[0], steps[_LAYERS]),
            f"\nOne {FIELD} array of {size / 1e6:.0f} MB, medians of {max(rounds, 5)} rounds; "
            f"the host's shmem_enabled is {shared_huge_pages()}:\n",
            throughput_table(reading, size),
        )
    )


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=293, help="of the one reference that is read")
    parser.add_argument("--table", type=Path, help="where to write the tables, as Markdown")
    arguments = parser.parse_args()
    with raw_socket(arguments.mib * MIB) as port:
        tables = asyncio.run(benchmark(arguments.episodes, arguments.rounds, arguments.mib, port))
    print(tables)
    if arguments.table is not None:
        arguments.table.write_text(f"{HEADER.format(cores=os.cpu_count())}\n{tables}\n")


if __name__ == "__main__":
    main()
