"""A steady load on a pool, and what each process spends on it, window by window."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from env_client import EnvClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from envtrio.v1.delta_pb2 import TraceDelta
    from envtrio.v1.episode_pb2 import Episode

PROCESSES: Final = ("client", "broker", "workers")
TOKENS: Final = 200
"""Of a turn."""

_NODES_PER_TURN: Final = 2
_LAG_SECONDS: Final = 0.005
_LEAST_WARM_SECONDS: Final = 0.3
_CPU_CLOCK: Final = 2  # the kernel's CPUCLOCK_SCHED: all threads of a process, in nanoseconds
_RUN_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Load:
    """`runs` episodes of `turns` turns at a time, one after the other in each of so many lanes.

    `turn_seconds` 0: as fast as it goes; otherwise `runs / turn_seconds` turns a second are offered. The
    lanes begin one after the other within a turn, with a first episode that is shorter, so that all
    moments of an episode are there at any time.
    """

    runs: int
    turns: int
    turn_seconds: float

    def first_turns(self, lane: int) -> int:
        """Turns of that lane's first episode."""
        return 1 + lane % self.turns

    def first_pause(self, lane: int) -> float:
        """Seconds that the lane waits before it."""
        return lane / self.runs * self.turn_seconds

    @property
    def warm_seconds(self) -> float:
        """Until all lanes of a paced load are under way."""
        return max(_LEAST_WARM_SECONDS, 1.25 * self.turn_seconds)


@dataclass(frozen=True, slots=True)
class Spent:
    """What processes have spent: CPU seconds, and how often one of their threads slept and was woken."""

    cpu: Mapping[str, float]
    wakes: Mapping[str, int]

    def __sub__(self, before: Spent) -> Spent:
        return Spent(
            {name: cpu - before.cpu[name] for name, cpu in self.cpu.items()},
            {name: wakes - before.wakes[name] for name, wakes in self.wakes.items()},
        )


@dataclass(frozen=True, slots=True)
class Window:
    """What happened within `seconds`. `spent` is by PROCESSES, workers together."""

    seconds: float
    episodes: int
    turns: int
    deltas: int
    spent: Spent
    lag_seconds: float

    def cpu_per_turn(self, process: str, idle: Window) -> float:
        """CPU microseconds that `process` ("": all) spent on a turn, beyond what it does when `idle`."""
        spent = sum(
            self.spent.cpu[name] - idle.spent.cpu[name] / idle.seconds * self.seconds
            for name in PROCESSES
            if process in ("", name)
        )
        return 1e6 * spent / self._some_turns()

    def wakes_per_turn(self, idle: Window) -> float:
        """How often a thread of any process was woken for a turn, beyond what happens when `idle`."""
        idling = sum(idle.spent.wakes.values()) / idle.seconds * self.seconds
        return (sum(self.spent.wakes.values()) - idling) / self._some_turns()

    def _some_turns(self) -> int:
        if not self.turns:
            raise RuntimeError(
                f"no turn came within {self.seconds:.1f} s, expected one at least: the machine is too busy; "
                "try again when it is not"
            )
        return self.turns


class Clocks:
    """Reads what this process, the client, a broker and its workers have spent."""

    def __init__(self, broker: int, workers: Sequence[int]) -> None:
        self._pids = {"client": [os.getpid()], "broker": [broker], "workers": list(workers)}

    def wakes(self) -> dict[str, int]:
        """Voluntary context switches so far of each of PROCESSES."""
        return {name: sum(map(_wakes, pids)) for name, pids in self._pids.items()}

    def cpu(self) -> dict[str, float]:
        """CPU seconds so far of each of PROCESSES."""
        return {
            name: sum(time.clock_gettime((~pid << 3) | _CPU_CLOCK) for pid in pids)
            for name, pids in self._pids.items()
        }


class Tally:
    """Counts what arrives, and how late the event loop is at most."""

    def __init__(self) -> None:
        self.episodes = self.turns = self.deltas = 0
        self.lag_seconds = 0.0

    def delta(self, delta: TraceDelta) -> None:
        """One arrived."""
        self.deltas += 1
        self.turns += len(delta.append.calls)

    def episode(self, episode: Episode, turns: int) -> None:
        """One is whole. RuntimeError if it is not what was asked for."""
        nodes = sum(len(trace.nodes) for trace in episode.traces)
        if not episode.head.ok or nodes != _NODES_PER_TURN * turns:
            raise RuntimeError(f"an episode of {turns} turns came with {nodes} nodes, ok={episode.head.ok}")
        self.episodes += 1

    async def watch_lag(self) -> None:
        """Until cancelled."""
        while True:
            due = time.perf_counter() + _LAG_SECONDS
            await asyncio.sleep(_LAG_SECONDS)
            self.lag_seconds = max(self.lag_seconds, time.perf_counter() - due)


class Meter:
    """Cuts the time into windows."""

    def __init__(self, clocks: Clocks, tally: Tally) -> None:
        self._clocks, self._tally = clocks, tally

    async def window(self, seconds: float) -> Window:
        """The next `seconds`."""
        tally, wakes = self._tally, self._clocks.wakes()
        # To count the wakes holds up the loop, which must be neither in the CPU nor in the lag.
        await asyncio.sleep(_LAG_SECONDS)
        tally.lag_seconds = 0.0
        episodes, turns, deltas = tally.episodes, tally.turns, tally.deltas
        began, cpu = time.perf_counter(), self._clocks.cpu()
        await asyncio.sleep(seconds)
        took, now = time.perf_counter() - began, self._clocks.cpu()
        return Window(
            seconds=took,
            episodes=tally.episodes - episodes,
            turns=tally.turns - turns,
            deltas=tally.deltas - deltas,
            spent=Spent(now, self._clocks.wakes()) - Spent(cpu, wakes),
            lag_seconds=tally.lag_seconds,
        )


async def idle(address: str, clocks: Clocks, seconds: float) -> Window:
    """What is spent while a client is connected and nothing runs, after a first run has connected all."""
    async with _client(address) as (client, tally):
        await _episode(client, tally, 1, 0.0)
        return await Meter(clocks, tally).window(seconds)


async def measure(address: str, clocks: Clocks, load: Load, windows: int, seconds: float) -> list[Window]:
    """So many windows of that load, on a client of its own; what runs at the end is cancelled.

    ExceptionGroup if a run fails.
    """
    async with _client(address) as (client, tally), asyncio.TaskGroup() as lanes:
        warm = asyncio.Semaphore(0)
        running = [lanes.create_task(_lane(client, tally, load, lane, warm)) for lane in range(load.runs)]
        await asyncio.sleep(load.warm_seconds)
        if not load.turn_seconds:
            for _ in running:
                await warm.acquire()
        meter = Meter(clocks, tally)
        measured = [await meter.window(seconds) for _ in range(windows)]
        for lane in running:
            lane.cancel()
    return measured


@asynccontextmanager
async def _client(address: str) -> AsyncIterator[tuple[EnvClient, Tally]]:
    tally = Tally()
    async with EnvClient(address, timeout=_RUN_SECONDS) as client:
        watching = asyncio.create_task(tally.watch_lag())
        try:
            yield client, tally
        finally:
            watching.cancel()


async def _lane(client: EnvClient, tally: Tally, load: Load, lane: int, warm: asyncio.Semaphore) -> None:
    await asyncio.sleep(load.first_pause(lane))
    await _episode(client, tally, load.first_turns(lane), load.turn_seconds)
    warm.release()
    while True:
        await _episode(client, tally, load.turns, load.turn_seconds)


async def _episode(client: EnvClient, tally: Tally, turns: int, turn_seconds: float) -> None:
    task = {"turns": turns, "tokens": TOKENS, "turn_seconds": turn_seconds}
    tally.episode(await client.run(task, on_delta=tally.delta), turns)


def _wakes(pid: int) -> int:
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            total += int(status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return total
