"""How the cost of a turn grows: with an episode's length, with the runs at a time, with the workers.

    python -m benchmarks.growth [--quick] [--out benchmarks/growth]

A broker and its workers, and this process as their client. CPU time is what counts, of client, broker and
workers, by the processes' own clocks. Paced: each turn leaves as a delta of its own, and the load is the same
along the axis, so what is measured is bookkeeping, not saturation. As fast as it goes: turns share deltas.
OUT.md has the tables, and whether the curves are flat; OUT.png the curves.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.growth_fit import FLAT, Point
from benchmarks.growth_load import TOKENS, Clocks, Load, idle, measure
from benchmarks.growth_report import (
    CONCURRENCY,
    FAST,
    LENGTH,
    PACED,
    PART,
    WORKERS,
    Series,
    plot,
    sentences,
    table,
)
from tests.helpers.pool_watch import states, watcher
from tests.helpers.pools import QUICK_STOP, serving
from tests.helpers.snapshot import descendants

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from benchmarks.growth_load import Window

ENVIRONMENT: Final = "growth=benchmarks.growth_environment:GrowthEnvironment"
PACKAGES: Final = ("grpcio", "protobuf", "numpy", "uvloop")

_MAX_RUNS: Final = 1024
_FEW_RUNS: Final = 4
_SHORT_TURNS: Final = 10
_LENGTH_TURN_SECONDS: Final = 0.004
"""Above the 2 ms for which a worker waits for more of a turn."""
_CONCURRENCY_TURNS_PER_SECOND: Final = 250
_WORKERS_RUNS: Final = 64
_WORKERS_TURNS_PER_SECOND: Final = 500

HEADER: Final = """<!-- Written by `make bench-growth`. -->
# Growth, measured

{machine}. {versions}. Command: `{command}`.

CPU microseconds of a turn (a user's or tool's node, a sampled one, a call; {tokens} tokens) in the client, in
the broker and in the workers together: medians of {windows} windows of {paced_seconds} s ({fast_seconds} s
as fast as it goes) at each point, with the least and the most. What an idle pool spends is not in them; it
has a column of its own (client / broker / workers). A wake is a thread that slept and was woken, in any of
the processes. A curve is called flat if the line fitted through the logarithms of all windows changes by less
than a factor of {flat} from one end of its axis to the other; a slope of 1 would be a cost in proportion. The
{cores} cores are shared by all processes.

![CPU microseconds a turn along the three axes]({plot})
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """The points, and how long each is looked at."""

    windows: int
    paced_seconds: float
    fast_seconds: float
    lengths: Sequence[int]
    runs: Sequence[int]
    workers: Sequence[int]


FULL: Final = Plan(
    windows=5,
    paced_seconds=1.5,
    fast_seconds=1.2,
    lengths=(10, 30, 100, 300, 1000, 2000),
    runs=(1, 4, 16, 64, 256, 1000),
    workers=(1, 2, 4, 8, 16),
)
QUICK: Final = Plan(
    windows=2,
    paced_seconds=0.5,
    fast_seconds=0.4,
    lengths=(10, 100, 1000),
    runs=(1, 30, 1000),
    workers=(1, 4),
)


def there_and_back(points: Sequence[int]) -> list[int]:
    """Every other one upwards, and those between downwards: a machine's drift makes no slope."""
    return [*points[::2], *points[1::2][::-1]]


@asynccontextmanager
async def pool(workers: int) -> AsyncIterator[tuple[str, Clocks, Window]]:
    """A broker with so many workers: its address, the clocks, and what it all costs when idle."""
    flags = ("--workers", str(workers), "--max-concurrent", str(_MAX_RUNS), "--env", ENVIRONMENT)
    async with serving("env_broker", *flags, "--log-level", "warning", *QUICK_STOP) as broker:
        async with watcher(broker.address) as watching:
            await watching.watch().until(lambda view: states(view) == ["READY"] * workers)
        clocks = Clocks(broker.pid, list(descendants(broker.pid)))
        yield broker.address, clocks, await idle(broker.address, clocks, 1.0)


async def along(
    axis: str, regime: str, held: str, at: Sequence[int], load_at: Callable[[int], Load], plan: Plan
) -> Series:
    """The curve on a pool of one worker."""
    seconds = plan.fast_seconds if regime == FAST else plan.paced_seconds
    points = []
    async with pool(1) as (address, clocks, resting):
        for x in there_and_back(at):
            windows = await measure(address, clocks, load_at(x), plan.windows, seconds)
            points.append(_told(axis, regime, Point(x, windows, resting)))
    return Series(axis, regime, held, sorted(points, key=lambda point: point.x))


async def along_workers(plan: Plan) -> Series:
    """The curve over pools of ever more workers."""
    load = Load(_WORKERS_RUNS, _SHORT_TURNS, _WORKERS_RUNS / _WORKERS_TURNS_PER_SECOND)
    points = []
    for workers in there_and_back(plan.workers):
        async with pool(workers) as (address, clocks, resting):
            windows = await measure(address, clocks, load, plan.windows, plan.paced_seconds)
        points.append(_told(WORKERS, PACED, Point(workers, windows, resting)))
    held = f"{_WORKERS_RUNS} runs of {_SHORT_TURNS} turns, {_WORKERS_TURNS_PER_SECOND} turns a second in all"
    return Series(WORKERS, PACED, held, sorted(points, key=lambda point: point.x))


async def curves(plan: Plan) -> list[list[Series]]:
    """All of them: those of one axis together."""

    def long(turn_seconds: float) -> Callable[[int], Load]:
        return lambda turns: Load(_FEW_RUNS, turns, turn_seconds)

    def spread(runs: int) -> Load:
        return Load(runs, _SHORT_TURNS, runs / _CONCURRENCY_TURNS_PER_SECOND)

    def packed(runs: int) -> Load:
        return Load(runs, _SHORT_TURNS, 0.0)

    def part(workers: int) -> Load:
        # What a worker of the above had to do, alone: is a turn dearer for the others, or for having few?
        return Load(_WORKERS_RUNS // workers, _SHORT_TURNS, _WORKERS_RUNS / _WORKERS_TURNS_PER_SECOND)

    few = f"{_FEW_RUNS} runs at a time"
    short = f"episodes of {_SHORT_TURNS} turns"
    each = f"{few}, a turn of each every {1e3 * _LENGTH_TURN_SECONDS:g} ms"
    same = f"{short}, {_CONCURRENCY_TURNS_PER_SECOND} turns a second in all"
    return [
        [
            await along(LENGTH, PACED, each, plan.lengths, long(_LENGTH_TURN_SECONDS), plan),
            await along(LENGTH, FAST, few, plan.lengths, long(0.0), plan),
        ],
        [
            await along(CONCURRENCY, PACED, same, plan.runs, spread, plan),
            await along(CONCURRENCY, FAST, short, plan.runs, packed, plan),
        ],
        [
            await along_workers(plan),
            await along(WORKERS, PART, "what one of so many had to do", plan.workers, part, plan),
        ],
    ]


def report(axes: Sequence[Sequence[Series]], plan: Plan, command: str, plotted: str) -> str:
    """OUT.md."""
    header = HEADER.format(
        machine=machine(),
        versions=versions(),
        command=command,
        tokens=TOKENS,
        windows=plan.windows,
        paced_seconds=plan.paced_seconds,
        fast_seconds=plan.fast_seconds,
        flat=FLAT,
        cores=os.cpu_count(),
        plot=plotted,
    )
    parts = [header]
    for curves_of_axis in axes:
        parts.append(f"## Along {curves_of_axis[0].axis}\n")
        parts.extend(sentences(series) + "\n" for series in curves_of_axis)
        parts.append(table(curves_of_axis) + "\n")
    return "\n".join(parts)


def machine() -> str:
    """Processor, cores and kernel."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = models[0] if models else platform.machine()
    return f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


def versions() -> str:
    """Of Python and of what the time is spent in."""
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            found.append(f"no {package}")
    return ", ".join(found)


def main() -> None:
    """Measure, write, show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few short looks: a try, not a result")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "growth", help="default: %(default)s"
    )
    arguments = parser.parse_args()
    began = time.monotonic()
    plan = QUICK if arguments.quick else FULL
    axes = asyncio.run(curves(plan))
    drawn = arguments.out.with_suffix(".png")
    plot(axes, drawn)
    command = " ".join(("python -m benchmarks.growth", *(["--quick"] if arguments.quick else [])))
    said = report(axes, plan, command, drawn.name)
    arguments.out.with_suffix(".md").write_text(said)
    print(f"{said}\nin {time.monotonic() - began:.0f} s", file=sys.stdout)


def _told(axis: str, regime: str, point: Point) -> Point:
    print(f"{axis} {point.x:g}, {regime}: {point.cost():.0f} us of CPU a turn", flush=True)
    return point


if __name__ == "__main__":
    main()
