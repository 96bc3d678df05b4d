"""Many runs, most of them cancelled at random moments: does anything grow, and is anything left?

    python -m benchmarks.soak [--runs 100000] [--seed N] [--out benchmarks/soak]

A broker, two workers and a client (this process) are watched once a second: resident memory, file
descriptors, threads, tasks, live runs, routes and sessions. OUT.csv has the samples, OUT.png the curves. In
the end every promise of the contract must have held for every run, nothing may be live, and the last quarter
of the time must look like the second one. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.observed import VARIABLE as OBSERVED
from benchmarks.observed import Observer
from env_client import EnvClient
from tests.helpers import oracle
from tests.helpers.history import (
    ConfirmAnswered,
    ConfirmSent,
    DiscardBegan,
    Ended,
    History,
    Passed,
    Record,
    from_line,
)
from tests.helpers.history_pipe import VARIABLE as HISTORY
from tests.helpers.history_pipe import HistoryWriter
from tests.helpers.pools import HOOK, serving
from tests.helpers.recorded_client import RecordedSession
from tests.helpers.recorded_lane import record_lane
from tests.helpers.storm_client import AsyncRider, Ride, StubRider
from tests.helpers.stub_client import StubClient

if TYPE_CHECKING:
    from collections.abc import Iterator


CANCELLED_SHARE = 0.7
BARE_SHARE = 0.2
"""Runs on the plain stub without a session: what is delivered of them is so by the end of its window."""
DISTURBANCES = {
    "async": ("cancel", "task", "deadline", "drop", "callback", "nudge"),
    "bare": ("cancel", "late", "drop", "deadline"),
}
LANES = 32
BATCH = 50
LATE_CANCEL_SECONDS = 1.0
REST_SECONDS = 60.0
"""Within which all must be forgotten: a broker holds a route for the window and 10 s."""
TOLERANCE = {"resident_mib": (0.10, 8.0), "files": (0.25, 8.0), "threads": (0.25, 4.0), "tasks": (0.5, 40.0)}
"""What the mean of the last quarter may exceed that of the second by: the larger of a share and a number.

A broker remembers each run for two minutes, so its memory still fills in the second quarter of a short soak:
see the curve of its tombstones beside that of its memory.
"""
STEADY_SECONDS = 60.0
"""Tables fill for the first seconds, by design: quarters of a shorter soak are not compared."""
LIVE = ("runs", "routes", "sessions")
STANDING = {"worker 0: sessions": 2, "worker 1: sessions": 2}
"""The broker has two of its own with each worker: for confirmations, and for the runs."""
CURVES = {
    "resident_mib": "resident memory, MiB",
    "files": "open file descriptors",
    "threads": "threads",
    "tasks": "asyncio tasks",
    "runs": "runs and open windows",
    "routes": "routes",
    "sessions": "sessions",
    "tombstones": "tombstones: ids and outcomes, a broker's for 2 minutes",
}
COLUMNS = ("seconds", "process", "resident_mib", "files", "threads", "tasks", *LIVE, "tombstones")


class SoakHistory(HistoryWriter):
    """Writes all but the messages; `confirming` are the runs whose confirmation was not answered."""

    def __init__(self) -> None:
        super().__init__()
        self.confirming: set[str] = set()

    def add(self, record: Record) -> None:
        if isinstance(record, ConfirmSent):
            self.confirming.add(record.run)
        elif isinstance(record, ConfirmAnswered):
            self.confirming.discard(record.run)
        if not isinstance(record, Passed):
            super().add(record)


class Soak:
    """The load: `runs` runs against `address`, the same for the same seed but for their timing."""

    def __init__(self, address: str, runs: int, seed: int) -> None:
        self._address = address
        self._runs = runs
        self._done = 0
        self._history = SoakHistory()
        self._batches = _batches(runs, seed)

    async def play(self) -> None:
        """All of it."""
        session = RecordedSession(self._address, self._history)
        async with (
            EnvClient(self._address, env="synthetic", session=session) as client,
            asyncio.TaskGroup() as lanes,
        ):
            record_lane(client, self._history)
            for _ in range(LANES):
                lanes.create_task(self._lane(client))

    async def _lane(self, client: EnvClient) -> None:
        for kind, batch in self._batches:
            # A new connection for each, as callers come and go.
            async with StubClient(self._address, self._history) as stub:
                rider = AsyncRider(client, stub, self._history) if kind == "async" else StubRider(stub, None)
                for ride in batch:
                    await rider.ride(ride)
                    if ride.run in self._history.confirming:
                        # Its caller left while the confirmation was under way: who was first?
                        self._history.confirming.discard(ride.run)
                        await stub.cancel(ride.run)
                    self._count()

    def _count(self) -> None:
        self._done += 1
        if self._done % max(1, self._runs // 20) == 0:
            print(f"{self._done} of {self._runs} runs", flush=True)


def _batches(runs: int, seed: int) -> Iterator[tuple[str, list[Ride]]]:
    dice = random.Random(seed)
    for begun in range(0, runs, BATCH):
        kind = "bare" if dice.random() < BARE_SHARE else "async"
        yield kind, [_ride(kind, dice) for _ in range(min(BATCH, runs - begun))]


def _ride(kind: str, dice: random.Random) -> Ride:
    return Ride(
        run=f"{dice.getrandbits(128):032x}",
        way=dice.choice(DISTURBANCES[kind]) if dice.random() < CANCELLED_SHARE else "plain",
        moment=dice.uniform(0.0, 1.2),
        deltas=dice.randint(1, 4),
        hook="",
    )


async def soak(runs: int, seed: int, scratch: Path) -> tuple[History, list[dict[str, Any]]]:
    """Do it: the history of all runs, and the samples of all processes."""
    history, samples = scratch / "history", scratch / "samples"
    os.environ[HISTORY] = str(history)
    window = ("--late-cancel-seconds", str(LATE_CANCEL_SECONDS))
    stop = ("--drain-seconds", "1", "--linger-seconds", "5", "--kill-seconds", "5", "--log-level", "warning")
    async with AsyncExitStack() as stack:

        async def start(package: str, name: str, *arguments: str) -> str:
            variables = {OBSERVED: f"{package}:{name}:{samples}"}
            server = await stack.enter_async_context(
                serving("benchmarks.observed", *arguments, *stop, variables=variables)
            )
            return server.address

        broker = await start("env_broker", "broker")
        for number in (0, 1):
            joins = ("--broker", broker, "--env", "synthetic", "--hook", HOOK, *window)
            await start("env_worker", f"worker {number}", *joins)
        async with EnvClient(broker) as client:
            await client.wait_until_ready()
        Observer("client", str(samples)).start()
        began = time.monotonic()
        await Soak(broker, runs, seed).play()
        print(f"{runs} runs in {time.monotonic() - began:.0f} s; waiting until all is forgotten", flush=True)
        ended = time.monotonic()
        while live := _live(samples):
            if time.monotonic() > ended + REST_SECONDS:
                raise SystemExit(
                    f"broke NothingLeftBehind: after {REST_SECONDS:g} s at rest there still are {live}"
                )
            await asyncio.sleep(1.0)
    taken = [sample for sample in _samples(samples) if sample["time"] <= ended]
    for sample in taken:
        sample["seconds"] = round(sample.pop("time") - began, 1)
    with history.open("rb") as lines:
        return History([from_line(line) for line in lines]), taken


def _samples(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def _live(path: Path) -> dict[str, int]:
    """What the latest sample of each process still counts."""
    latest = {sample["process"]: sample for sample in _samples(path)}
    counts = {f"{name}: {what}": sample[what] for name, sample in latest.items() for what in LIVE}
    return {what: count for what, count in counts.items() if count != STANDING.get(what, 0)}


def growth(samples: list[dict[str, Any]]) -> list[str]:
    """What was more in the last quarter than in the second one, beyond its tolerance."""
    length = max(sample["seconds"] for sample in samples)
    if length < STEADY_SECONDS:
        print(f"{length:.0f} s are too short to compare quarters, {STEADY_SECONDS:g} s are needed")
        return []
    grown = []
    for process in sorted({sample["process"] for sample in samples}):
        for what, (share, number) in TOLERANCE.items():
            second, last = (
                statistics.fmean(
                    sample[what]
                    for sample in samples
                    if sample["process"] == process and begin <= sample["seconds"] / length <= begin + 0.25
                )
                for begin in (0.25, 0.75)
            )
            print(f"{process:9} {what:13} second quarter {second:8.1f}   last {last:8.1f}")
            if last - second > max(share * second, number):
                grown.append(f"{what} of {process} grew from {second:.1f} to {last:.1f}")
    return grown


def write(samples: list[dict[str, Any]], out: Path) -> None:
    """The samples as CSV, and as curves."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(samples)
    figure, axes = pyplot.subplots(4, 2, figsize=(12, 13), sharex=True)
    for axis, what in zip(axes.flat, CURVES, strict=True):
        for process in sorted({sample["process"] for sample in samples}):
            points = [(s["seconds"], s[what]) for s in samples if s["process"] == process]
            if any(count for _, count in points):
                axis.plot(*zip(*points, strict=True), label=process, linewidth=1)
        axis.set_title(CURVES[what])
        axis.set_ylim(bottom=0)
        axis.legend(loc="lower right", fontsize="small")
    for axis in axes[-1]:
        axis.set_xlabel("seconds")
    figure.tight_layout()
    figure.savefig(out.with_suffix(".png"), dpi=100)


def main() -> int:
    """Soak, write, judge."""
    parser = argparse.ArgumentParser(description="Cancel most of many runs, and look for what is left.")
    parser.add_argument("--runs", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="default: a random one")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "soak", help="default: %(default)s"
    )
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        history, samples = asyncio.run(soak(arguments.runs, arguments.seed, Path(scratch)))
    write(samples, arguments.out)
    counted = Counter(record.code for record in history if isinstance(record, Ended))
    discards = sum(isinstance(record, DiscardBegan) for record in history)
    print(f"ended: {dict(counted)}; discarded: {discards}")
    broken = growth(samples)
    try:
        oracle.contract_holds(history)
        oracle.outcomes_add_up(history, arguments.runs)
    except oracle.GuaranteeBroken as error:
        broken.append(str(error))
        if (named := re.search(r"run ([0-9a-f]{8}):", str(error))) is not None:
            for run in history.runs():
                if run.startswith(named[1]):
                    broken.extend(f"  {record}" for record in history.of(run, Record))
    print("\n".join(broken) or "every promise held, nothing grew, nothing is left")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
