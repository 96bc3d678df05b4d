"""What an episode costs its client apart from the transport: assembling it and checking it.

    python -m benchmarks.assembly_cost [--repetitions N] [--profile]

Builds the streams of synthetic episodes as a worker does, one delta a turn and all of them joined, and feeds
them to an EpisodeAssembly. Prints medians in microseconds: of a message, of each step, of the whole episode.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import statistics
import time
from typing import TYPE_CHECKING, Final

from env_client import EpisodeAssembly, check_episode
from env_worker import wire
from env_worker.delta.streamer import DeltaStreamer
from env_worker.domain import Episode, SamplingParams
from env_worker.envs.base import Context
from env_worker.envs.synthetic import SyntheticEnvironment
from env_worker.model.simulated import SimulatedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

SHAPES: Final = {"10 turns x 200 tokens": (10, 200), "100 turns x 50 tokens": (100, 50)}


async def stream(turns: int, tokens: int) -> list[bytes]:
    """The messages of one episode: a delta for each turn, the next turn's preview included."""
    episode = Episode("0" * 32, "synthetic", {})
    streamer = DeltaStreamer(episode)
    task = {"turns": turns, "tokens_per_turn": tokens, "layers": 0}
    context = Context("1" * 32, task, SamplingParams(), SimulatedModel(), episode)
    playing = asyncio.ensure_future(SyntheticEnvironment().run(context))
    messages: list[bytes] = []
    while not playing.done():
        await asyncio.sleep(0)
        if not playing.done() and (message := streamer.next_message()) is not None:
            messages.append(message)
            streamer.commit()
    playing.result()
    head = wire.head(episode, task_json="{}", worker_instance="2" * 32, duration_seconds=1.0)
    return [*messages, *streamer.final_messages(head)]


def once(messages: Sequence[bytes]) -> tuple[float, float, float]:
    """Seconds that applying all messages, finishing and checking took."""
    assembly = EpisodeAssembly()
    begun = time.perf_counter()
    for message in messages:
        assembly.apply(message)
    applied = time.perf_counter()
    episode = assembly.finish()
    finished = time.perf_counter()
    check_episode(episode)
    return applied - begun, finished - applied, time.perf_counter() - finished


def report(name: str, messages: Sequence[bytes], repetitions: int) -> None:
    """Print one line."""
    measured = [once(messages) for _ in range(repetitions)]
    apply, finish, check = (statistics.median(step) * 1e6 for step in zip(*measured, strict=True))
    print(
        f"{name:42s} {len(messages):4d} messages of {sum(map(len, messages)) // len(messages):7d} bytes: "
        f"apply {apply / len(messages):7.1f} us a message, {apply:7.0f} an episode; finish {finish:6.0f}; "
        f"check {check:6.0f}; together {apply + finish + check:7.0f} us",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repetitions", type=int, default=500, help="episodes of each kind")
    parser.add_argument("--profile", action="store_true", help="also print where the time goes")
    chosen = parser.parse_args(arguments)
    for name, (turns, tokens) in SHAPES.items():
        messages = asyncio.run(stream(turns, tokens))
        for kind, form in (("delta by delta", messages), ("joined", [b"".join(messages)])):
            report(f"{name}, {kind}", form, chosen.repetitions)
        if chosen.profile:
            with cProfile.Profile() as profile:
                for _ in range(chosen.repetitions):
                    once(messages)
            profile.print_stats("tottime")


if __name__ == "__main__":
    main()
