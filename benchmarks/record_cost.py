"""What a record costs the worker, from the environment's call to the bytes of the stream.

    python -m benchmarks.record_cost [--rounds R] [--profile]

Prints CPU microseconds, medians over the rounds: of each node and call added, of each encoded, of each
message built, and of whole episodes of two shapes, whose every turn leaves as a delta of its own, or all of
whose turns are joined. Nothing is sent. A turn is a tool's node, an assistant's node and a call. The cyclic
collector stays out of these, and is measured by itself, with 64 episodes alive.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import statistics
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from envtrio.v1 import episode_pb2

from env_worker.delta.streamer import DeltaStreamer
from env_worker.domain import Call, Episode, Message, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_HEAD: Final = episode_pb2.EpisodeHead(episode_id="0" * 32, environment="bench", task_json="{}", ok=True)
_RECORDS: Final = 1_000
_ONE_MESSAGE: Final = 64 * 1024 * 1024


@dataclass(frozen=True)
class Shape:
    """An episode of `turns` turns of `tokens` tokens, half of them sampled, four characters each."""

    turns: int
    tokens: int

    def __post_init__(self) -> None:
        if self.turns < 1 or self.tokens < 2:
            raise ValueError(f"{self} is no episode; expected 1 turn or more, of 2 tokens or more")

    def write_turn(self, trace: Trace) -> None:
        """What an environment writes in a turn."""
        parent = len(trace.nodes) - 1
        self.add_given(trace, parent if parent >= 0 else None)
        self.add_sampled(trace, parent + 1)
        self.add_call(trace, parent + 2)

    def add_given(self, trace: Trace, parent: int | None) -> None:
        """The node of a tool's answer."""
        half = self.tokens // 2
        trace.add_node(Message.tool(_TEXT[: 4 * half], "call-1"), _IDS[:half], parent=parent)

    def add_sampled(self, trace: Trace, parent: int | None) -> None:
        """The node of the model's answer."""
        half = self.tokens // 2
        trace.add_node(
            Message.assistant(_TEXT[: 4 * half]),
            _IDS[:half],
            parent=parent,
            sampled=True,
            logprobs=_LOGPROBS[:half],
        )

    def add_call(self, trace: Trace, node: int) -> None:
        """The call that made node `node`."""
        trace.add_call(
            Call(
                node, "model", "/chat/completions", duration_seconds=1.0, prompt_tokens=1_000,
                completion_tokens=self.tokens // 2, finish_reason="tool_calls",
            )
        )  # fmt: skip


SHAPES: Final = (Shape(10, 200), Shape(100, 50))
_IDS: Final = np.random.default_rng(1).integers(0, 150_000, 4_096, dtype=np.int32)
_LOGPROBS: Final = -np.random.default_rng(2).random(4_096, dtype=np.float32)
_TEXT: Final = "the quick brown fox jumps over the lazy dog " * 400


def new_episode() -> Episode:
    """One without a trace."""
    return Episode("0" * 32, "bench", {})


def play(shape: Shape, *, joined: bool) -> Episode:
    """A whole episode, from its first trace to the reply."""
    episode = new_episode()
    streamer = DeltaStreamer(episode)
    trace = episode.new_trace()
    for _ in range(shape.turns):
        shape.write_turn(trace)
        if not joined and streamer.next_message() is not None:
            streamer.commit()
    trace.set_reward("reward", 1.0)
    trace.set_stop("done")
    trace.finish()
    for _ in streamer.final_messages(_HEAD):
        pass
    return episode


def per_record(add: Callable[[Trace, int], object]) -> tuple[float, float]:
    """Microseconds of one `add(trace, index)`, and of encoding what it added, where many go together."""
    episode = new_episode()
    streamer = DeltaStreamer(episode, target_bytes=_ONE_MESSAGE)
    trace = episode.new_trace()
    trace.add_node(Message.user("a root"))
    streamer.next_message()
    streamer.commit()
    start = time.process_time()
    for index in range(_RECORDS):
        add(trace, index)
    added = time.process_time()
    streamer.next_message()
    encoded = time.process_time()
    return (added - start) / _RECORDS * 1e6, (encoded - added) / _RECORDS * 1e6


def per_message(shape: Shape) -> float:
    """Microseconds of a message that carries one turn: taken, encoded, put together, committed."""
    episode = new_episode()
    streamer = DeltaStreamer(episode)
    trace = episode.new_trace()
    spent = 0.0
    for _ in range(_RECORDS):
        shape.write_turn(trace)
        start = time.process_time()
        streamer.next_message()
        streamer.commit()
        spent += time.process_time() - start
    return spent / _RECORDS * 1e6


def per_episode(shape: Shape, *, joined: bool) -> float:
    """Microseconds of a whole episode."""
    repeats = max(1, _RECORDS // shape.turns)
    start = time.process_time()
    for _ in range(repeats):
        play(shape, joined=joined)
    return (time.process_time() - start) / repeats * 1e6


def collector(shape: Shape) -> tuple[float, float]:
    """Microseconds an episode that the cyclic collector takes, and those of its longest pass."""
    passes: list[float] = []
    began = 0.0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.process_time()
        else:
            passes.append((time.process_time() - began) * 1e6)

    alive: deque[Episode] = deque(maxlen=64)
    gc.callbacks.append(note)
    gc.enable()
    try:
        for _ in range(4 * 64):
            alive.append(play(shape, joined=False))
    finally:
        gc.disable()
        gc.callbacks.remove(note)
    return sum(passes) / (4 * 64), max(passes, default=0.0)


def measure(rounds: int) -> dict[str, float]:
    """The medians of all figures, by what they are of."""
    found: dict[str, list[float]] = {}
    gc.disable()
    try:
        for _ in range(rounds):
            for name, value in _figures():
                found.setdefault(name, []).append(value)
            gc.collect()
    finally:
        gc.enable()
    return {name: statistics.median(values) for name, values in found.items()}


def _figures() -> Sequence[tuple[str, float]]:
    figures: list[tuple[str, float]] = []
    small = SHAPES[0]
    for name, add in (
        ("given node", lambda trace, index: small.add_given(trace, 0)),
        ("sampled node", lambda trace, index: small.add_sampled(trace, 0)),
        ("call", lambda trace, index: small.add_call(trace, 0)),
        ("metric", lambda trace, index: trace.set_metric("m", index)),
    ):
        added, encoded = per_record(add)
        figures += [(f"{name}, added", added), (f"{name}, encoded", encoded)]
    for shape in SHAPES:
        tag = f"{shape.turns} turns of {shape.tokens} tokens"
        figures.append((f"message of one turn, {tag}", per_message(shape)))
        figures.append((f"episode, a delta a turn, {tag}", per_episode(shape, joined=False)))
        figures.append((f"episode, joined, {tag}", per_episode(shape, joined=True)))
        share, longest = collector(shape)
        figures.append((f"collector, of an episode, {tag}", share))
        figures.append((f"collector, its longest pass, {tag}", longest))
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--profile", action="store_true", help="print where the time of an episode goes, too")
    chosen = parser.parse_args(arguments)
    for name, value in measure(chosen.rounds).items():
        print(f"{value:9.1f} us  {name}")
    if chosen.profile:
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(200):
            play(SHAPES[0], joined=False)
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
