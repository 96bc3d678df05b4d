"""What a confirmed episode costs its client more than an unconfirmed one.

    python -m benchmarks.confirm_cost [--episodes N] [--concurrency C ...] [--rounds R]

Runs short episodes (two turns of three tokens, the worst case: nothing else to do) with an EnvClient, in
turns against a server with sessions and one without, each in a process of its own. Prints the medians over
the rounds: CPU microseconds of the client's process and wall microseconds for an episode, and their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from env_client import EnvClient
from tests.helpers.deltas import episode_stream
from tests.helpers.scripted_service import ScriptedService

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WARM_UP: Final = 100
_MESSAGES: Final = [message.SerializeToString() for message in episode_stream()]


@dataclass(frozen=True)
class Cost:
    """Microseconds for one episode."""

    cpu: float
    wall: float


class EndlessService(ScriptedService):
    """Answers every Run with the same episode."""

    def run(self, request: object, context: object) -> Iterator[bytes]:
        """Handler of Run."""
        yield from _MESSAGES


def serve(sessions: bool) -> None:
    """Serve until standard input ends."""
    with EndlessService(sessions=sessions) as service:
        print(service.address, flush=True)
        sys.stdin.read()


async def measure(address: str, episodes: int, concurrency: int) -> Cost:
    """Run so many episodes, so many at once."""
    async with EnvClient(address) as client:
        await _run(client, _WARM_UP, concurrency)
        cpu, wall = time.process_time(), time.perf_counter()
        await _run(client, episodes, concurrency)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Cost(cpu / episodes * 1e6, wall / episodes * 1e6)


async def _run(client: EnvClient, episodes: int, concurrency: int) -> None:
    left = iter(range(episodes))

    async def lane() -> None:
        for _ in left:
            await client.run({})

    await asyncio.gather(*(lane() for _ in range(concurrency)))


async def compare(addresses: dict[bool, str], episodes: int, concurrency: int, rounds: int) -> None:
    """Print one line."""
    costs: dict[bool, list[Cost]] = {True: [], False: []}
    for number in range(rounds):
        for confirmed in (True, False) if number % 2 else (False, True):
            costs[confirmed].append(await measure(addresses[confirmed], episodes, concurrency))
    cells = []
    for name in ("cpu", "wall"):
        yes, no = (statistics.median(getattr(cost, name) for cost in costs[kind]) for kind in (True, False))
        cells.append(f"{name} {yes:6.0f} / {no:6.0f} us = {yes / no:.2f}x")
    print(f"{concurrency:4d} at once, confirmed / unconfirmed episode:  {'   '.join(cells)}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=1000, help="of one measurement")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16, 128], help="runs at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", choices=["sessions", "none"], help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.serve:
        serve(chosen.serve == "sessions")
        return
    command = [sys.executable, "-m", "benchmarks.confirm_cost", "--serve"]
    servers = {
        confirmed: subprocess.Popen(
            [*command, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for confirmed, kind in ((True, "sessions"), (False, "none"))
    }
    try:
        addresses = {
            confirmed: server.stdout.readline().strip()
            for confirmed, server in servers.items()
            if server.stdout is not None
        }
        for concurrency in chosen.concurrency:
            asyncio.run(compare(addresses, chosen.episodes, concurrency, chosen.rounds))
    finally:
        for server in servers.values():
            server.communicate()


if __name__ == "__main__":
    main()
