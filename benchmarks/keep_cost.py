"""What training arrays cost the worker, from the environment's call to the release.

    python -m benchmarks.keep_cost [--rounds R] [--episodes N] [--held H] [--profile]

Plays and keeps episodes of 20 turns of 1,500 tokens with routing 48 x 8 (11.5 MB each), in threads as a
worker does, holds the last H of them, and releases the others one by one. Prints medians over the rounds,
per episode: CPU milliseconds, GB/s and page faults of each part, indented where it is part of the one above;
then how late an event loop is called beside the keeps, and beside none, and the peak of memory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import functools
import pstats
import random
import resource
import statistics
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from benchmarks.versus.banks import Banks
from benchmarks.versus.workloads import Shape
from env_worker.arrays import crc32c, keeping, layout, writer
from env_worker.arrays.limits import ArrayLimits, Home
from env_worker.arrays.store import ArrayStore
from env_worker.domain import Episode, Message, Node

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SHAPE: Final = Shape(20, 1_500, 48, 8)
_ALIVE: Final = 16
"""Episodes between their begin and their keep."""
_KEEP_THREADS: Final = 4
_TICK_SECONDS: Final = 0.001

_MADE, _REPAIRS = "made", "repairs"
_KEPT, _CHECKS, _LAYOUT = "kept", "checks", "layout, checks included"
_CRC, _WRITES = "checksums", "writes"
_FREED, _RELEASED = "nodes' arrays freed", "released"
PARTS: Final = (_MADE, _REPAIRS, _KEPT, _CHECKS, _LAYOUT, _CRC, _WRITES, _FREED, _RELEASED)
_INSIDE: Final = (_REPAIRS, _CHECKS, _LAYOUT, _CRC, _WRITES)
"""Measured in rounds of their own, since measuring them costs what contains them something."""


class Meter:
    """CPU seconds and page faults of the parts, added up. One thread at a time."""

    def __init__(self) -> None:
        self.seconds: Final = dict.fromkeys(PARTS, 0.0)
        self.faults: Final = dict.fromkeys(PARTS, 0)

    def __call__(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, measured as `part`."""

        @functools.wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            faults, started = _faults(), time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[part] += time.thread_time() - started
                self.faults[part] += _faults() - faults

        return measured


class Insides:
    """While entered, what goes on inside of a keep is measured too."""

    def __init__(self, meter: Meter) -> None:
        self._meter: Final = meter
        self._real: Final[list[tuple[Any, str, Any]]] = []

    def __enter__(self) -> None:
        of = layout.TraceLayout.of
        for owner, name, part in (
            (Node, "repair_routing", _REPAIRS),
            (layout, "field_states", _CHECKS),
            (layout.TraceLayout, "of", _LAYOUT),
            (crc32c, "extend", _CRC),
            (writer, "_write", _WRITES),
        ):
            self._real.append((owner, name, owner.__dict__[name]))
            function = self._meter(part, of if name == "of" else owner.__dict__[name])
            setattr(owner, name, staticmethod(function) if name == "of" else function)

    def __exit__(self, *_: object) -> None:
        for owner, name, real in self._real:
            setattr(owner, name, real)


def play(banks: Banks, number: int) -> Episode:
    """An episode as the environment of `benchmarks.versus` writes it, without what streams by itself."""
    rng = random.Random(number)
    episode = Episode(f"{number:032x}", "bench", {})
    trace = episode.new_trace()
    last: int | None = None
    for _ in range(SHAPE.turns):
        arrays = banks.turn(rng)
        if last is not None and arrays.asked_routing is not None:
            trace.repair_routing(last, SHAPE.sampled - 1, arrays.asked_routing[0])
        asked = trace.add_node(
            Message.user(""), arrays.asked_ids, parent=last, routed_experts=arrays.asked_routing
        )
        last = trace.add_node(
            Message.assistant(""),
            arrays.sampled_ids,
            logprobs=arrays.logprobs,
            parent=asked,
            sampled=True,
            routed_experts=arrays.sampled_routing,
        )
    trace.finish()
    return episode


def keys_of(episode: Episode) -> list[str]:
    """Of the branches that were kept."""
    return [reference["key"] for trace in episode.traces for reference in trace.info[keeping.INFO_KEY]]


def one_round(
    store: ArrayStore, banks: Banks, threads: tuple[ThreadPoolExecutor, ThreadPoolExecutor], episodes: int,
    *, held: int, insides: bool,
) -> Meter:  # fmt: skip
    """Play, keep and release so many episodes."""
    meter = Meter()
    keys: deque[list[str]] = deque()
    make, keep = meter(_MADE, play), meter(_KEPT, store.keep)
    drop, release = meter(_FREED, Episode.drop_arrays), meter(_RELEASED, store.release)
    environment, keeper = threads
    alive: deque[Episode] = deque()
    with Insides(meter) if insides else contextlib.nullcontext():
        for number in range(episodes + _ALIVE):
            if number < episodes:
                alive.append(environment.submit(make, banks, number).result())
            if number >= _ALIVE and alive:
                episode = alive.popleft()
                keeper.submit(keep, episode).result()
                drop(episode)
                keys.append(keys_of(episode))
                if len(keys) > held:
                    release(keys.popleft())
        while keys:
            release(keys.popleft())
    return meter


async def lag(store: ArrayStore, episodes: Sequence[Episode]) -> list[float]:
    """Milliseconds by which an event loop was called late while these were kept, four at a time; sorted."""
    late: list[float] = []
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(_KEEP_THREADS) as keepers:
        kept = asyncio.gather(*(loop.run_in_executor(keepers, store.keep, episode) for episode in episodes))
        while not kept.done() or len(late) < 100:
            due = loop.time() + _TICK_SECONDS
            await asyncio.sleep(_TICK_SECONDS)
            late.append((loop.time() - due) * 1e3)
        await kept
    store.release([key for episode in episodes for key in keys_of(episode)])
    return sorted(late)


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def _print(whole: Sequence[Meter], insides: Sequence[Meter], episodes: int) -> None:
    print(f"{'CPU ms':>8} {'GB/s':>7} {'faults':>7}  of an episode of {SHAPE.array_bytes / 1e6:.1f} MB")
    total = 0.0
    for part in PARTS:
        meters = insides if part in _INSIDE else whole
        seconds = statistics.median(meter.seconds[part] for meter in meters) / episodes
        faults = statistics.median(meter.faults[part] for meter in meters) / episodes
        total += 0.0 if part in _INSIDE else seconds
        indent = "  " if part in _INSIDE else ""
        speed = SHAPE.array_bytes / max(seconds, 1e-9) / 1e9
        print(f"{seconds * 1e3:8.3f} {speed:7.1f} {faults:7.0f}  {indent}{part}")
    print(f"{total * 1e3:8.3f} {'':15}  in all")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--episodes", type=int, default=50, help="of a round")
    parser.add_argument("--held", type=int, default=8, help="kept episodes that are not released yet")
    parser.add_argument("--profile", action="store_true", help="print where the time of a keep goes, too")
    chosen = parser.parse_args(arguments)
    banks = Banks(SHAPE)
    store = ArrayStore(ArrayLimits(2 * chosen.episodes * SHAPE.array_bytes))
    store.attach(Home("a" * 32, "127.0.0.1:1"), ArrayLimits(0))
    with ThreadPoolExecutor(1) as environment, ThreadPoolExecutor(1) as keeper:
        meters = [
            one_round(
                store, banks, (environment, keeper), chosen.episodes,
                held=chosen.held, insides=bool(number % 2),
            )
            for number in range(2 * chosen.rounds + 2)
        ][2:]  # fmt: skip
    _print(meters[::2], meters[1::2], chosen.episodes)
    for what, count in (("no keep", 0), (f"{chosen.episodes} keeps", chosen.episodes)):
        late = asyncio.run(lag(store, [play(banks, number) for number in range(count)]))
        p50, p99 = late[len(late) // 2], late[len(late) * 99 // 100]
        said = f"p50 {p50:.2f}, p99 {p99:.2f}, max {late[-1]:.2f}"
        print(f"ms by which an event loop is late beside {what}: {said}")
    print(f"peak of resident memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    if chosen.profile:
        episodes = [play(banks, number) for number in range(chosen.episodes)]
        profile = cProfile.Profile()
        profile.enable()
        for episode in episodes:
            store.keep(episode)
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
