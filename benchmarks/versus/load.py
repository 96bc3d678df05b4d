"""One round of one side: so many episodes, so many at once, and what they cost.

The standard library only: both drivers play it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.versus import gauges
from benchmarks.versus.cancels import cancel_plan
from benchmarks.versus.gauges import percentile
from benchmarks.versus.notes import ABORTED, BEGAN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from benchmarks.versus.notes import Notes

_SETTLE_SECONDS = 5.0
_SHOWN_FAILURES = 3


@dataclass(frozen=True, slots=True)
class Order:
    """A round, as its driver is told: `cancel_within` is the longest time to a cancel, 0.0: none; `part` is
    what is played with no pool, one of `Workload.ceilings`, "" with one."""

    episodes: int
    concurrency: int
    first_number: int
    turns: int
    cancel_within: float = 0.0
    seed: int = 0
    fetch: bool = False
    part: str = ""


@dataclass(frozen=True, slots=True)
class Processes:
    """A side's process ids."""

    client: int
    broker: int
    workers: tuple[int, ...]

    def __iter__(self) -> Iterator[int]:
        return iter((self.client, self.broker, *self.workers))


class Subject(Protocol):
    """A side's pool and client, as a round sees it."""

    processes: Processes

    def run(self, number: int, on_delta: Callable[[Any], None]) -> Coroutine[Any, Any, None]:
        """Play one episode and check it. Raises what the client raises; ValueError for a wrong episode."""

    async def finish(self, *, fetch: bool) -> None:
        """What belongs to the round after its last episode, and is counted: all that was kept is freed, and
        with `fetch` is fetched and read before."""


class RoundFailed(Exception):
    """Episodes of the round failed; the message says how many and why."""


@dataclass
class Tally:
    """What the client saw."""

    deltas: int = 0
    first_delta: list[float] = field(default_factory=list)
    episode: list[float] = field(default_factory=list)
    cancelled_at: dict[int, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


async def play(order: Order, subject: Subject, notes: Notes) -> dict[str, float | None]:
    """The round's figures, by the keys of `figures.FIGURES`.

    Raises RoundFailed if an episode failed, and OSError if a process is gone.
    """
    tally = Tally()
    plan: list[float | None] = [None] * order.episodes
    if order.cancel_within:
        plan = cancel_plan(order.episodes, order.cancel_within, order.seed)
    numbers = iter(range(order.episodes))  # shared by the slots: each run is somebody's

    async def slot() -> None:
        for number in numbers:
            await _run(subject, order.first_number + number, plan[number], tally)

    async with _Meter(subject.processes).measured() as meter:
        await asyncio.gather(*(slot() for _ in range(order.concurrency)))
        await subject.finish(fetch=order.fetch)
    measured = {
        **_rates(order, tally, meter.seconds),
        **meter.figures(order.episodes),
        "delta_cpu_us": meter.cpu_seconds * 1e6 / tally.deltas if tally.deltas else None,
        "first_delta_p50_ms": _milliseconds(percentile(tally.first_delta, 0.50)),
        "first_delta_p99_ms": _milliseconds(percentile(tally.first_delta, 0.99)),
    }
    if order.cancel_within:
        measured |= await _aborts(tally, notes)
    if tally.failures:
        shown = "; ".join(tally.failures[:_SHOWN_FAILURES])
        raise RoundFailed(f"{len(tally.failures)} of {order.episodes} episodes failed, the first: {shown}")
    return measured


async def _run(subject: Subject, number: int, cancel_after: float | None, tally: Tally) -> None:
    began = time.perf_counter()
    waits = True

    def on_delta(_: Any) -> None:
        nonlocal waits
        tally.deltas += 1
        if waits:
            waits = False
            tally.first_delta.append(time.perf_counter() - began)

    try:
        if cancel_after is None:
            await subject.run(number, on_delta)
        elif not await _cancelled(subject, number, cancel_after, on_delta, tally):
            return
    except Exception as error:  # whatever the side's client raises is a row of the table
        tally.failures.append(f"{type(error).__name__}: {error}")
    else:
        tally.episode.append(time.perf_counter() - began)


async def _cancelled(
    subject: Subject, number: int, after: float, on_delta: Callable[[Any], None], tally: Tally
) -> bool:
    """Play one that is cancelled; whether it ended before that."""
    run = asyncio.create_task(subject.run(number, on_delta))

    def cancel() -> None:
        tally.cancelled_at[number] = time.monotonic()
        run.cancel()

    timer = asyncio.get_running_loop().call_later(after, cancel)
    try:
        await run
    except asyncio.CancelledError:
        if number not in tally.cancelled_at:
            raise
        return False
    finally:
        timer.cancel()
        run.cancel()
    tally.cancelled_at.pop(number, None)
    return True


async def _aborts(tally: Tally, notes: Notes) -> dict[str, float | None]:
    unanswered = await notes.settled(tally.cancelled_at.keys(), _SETTLE_SECONDS)
    aborted = notes.moments[ABORTED]
    took = [aborted[number] - at for number, at in tally.cancelled_at.items() if number in aborted]
    return {
        "cancelled": len(tally.cancelled_at),
        "aborted": len(took),
        "never_began": len(tally.cancelled_at.keys() - notes.moments[BEGAN].keys()),
        "went_on": len(unanswered),
        "abort_p50_ms": _milliseconds(percentile(took, 0.50)),
        "abort_p99_ms": _milliseconds(percentile(took, 0.99)),
    }


def _rates(order: Order, tally: Tally, seconds: float) -> dict[str, float | None]:
    # Of a cancelled run nobody knows how many turns it had.
    turns = None if order.cancel_within else order.episodes * order.turns / seconds
    return {
        "seconds": seconds,
        "episodes_per_s": order.episodes / seconds,
        "turns_per_s": turns,
        "deltas_per_s": tally.deltas / seconds,
        "deltas_per_episode": tally.deltas / order.episodes,
        "episode_p50_ms": _milliseconds(percentile(tally.episode, 0.50)),
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


class _Meter:
    """Reads the gauges before and after a block."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._lag = gauges.Lag()
        self._cpu: dict[int, float] = {}
        self._free = 0.0
        self._traffic: gauges.Traffic | None = None
        self._peak: dict[int, float] = {}
        self.seconds = 0.0

    @asynccontextmanager
    async def measured(self) -> AsyncIterator[_Meter]:
        for pid in self._processes:
            gauges.reset_peak(pid)
        traffic = gauges.traffic(self._processes.client)
        async with self._lag:
            cpu = {pid: gauges.cpu_seconds(pid) for pid in self._processes}
            began, free = time.perf_counter(), gauges.free_seconds()
            yield self
            self.seconds, self._free = time.perf_counter() - began, gauges.free_seconds() - free
            self._cpu = {pid: gauges.cpu_seconds(pid) - cpu[pid] for pid in self._processes}
        self._peak = {pid: gauges.peak_mb(pid) for pid in self._processes}
        if traffic is not None and (now := gauges.traffic(self._processes.client)) is not None:
            self._traffic = gauges.Traffic(now.received - traffic.received, now.sent - traffic.sent)

    @property
    def cpu_seconds(self) -> float:
        """Of all processes."""
        return sum(self._cpu.values())

    def figures(self, episodes: int) -> dict[str, float | None]:
        """What they say, for each episode where that has a meaning."""
        cpu, peak, of = self._cpu, self._peak, self._processes
        lag = self._lag.seconds
        return {
            "client_bytes": None if self._traffic is None else self._traffic.received / episodes,
            "client_sent_bytes": None if self._traffic is None else self._traffic.sent / episodes,
            "client_cpu_ms": cpu[of.client] * 1e3 / episodes,
            "broker_cpu_ms": cpu[of.broker] * 1e3 / episodes,
            "worker_cpu_ms": sum(cpu[pid] for pid in of.workers) * 1e3 / episodes,
            "client_mb": peak[of.client],
            "broker_mb": peak[of.broker],
            "worker_mb": max(peak[pid] for pid in of.workers),
            "lag_p50_ms": _milliseconds(percentile(lag, 0.50)),
            "lag_p99_ms": _milliseconds(percentile(lag, 0.99)),
            "lag_max_ms": max(lag) * 1e3,
            "others_percent": gauges.others_percent(self.seconds, self._free, self.cpu_seconds),
        }
