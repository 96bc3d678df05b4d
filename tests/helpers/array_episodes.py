"""Small episodes with training arrays, and stores that keep them."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from env_worker.arrays.budget import Room
from env_worker.arrays.limits import ArrayLimits, Home
from env_worker.arrays.spares import Spares
from env_worker.arrays.store import ArrayStore
from env_worker.domain import TRAINING_ARRAY_FIELDS, Episode, Message, SamplingMask, TopLogprobs, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from env_worker.arrays.writer import Put

HOME: Final = Home("a1" * 16, "127.0.0.1:7001")
PAGE: Final = 4096
ROW_BYTES: Final = 4
"""Of `routed_experts`: two layers of two experts."""
NO_SPARES: Final = Spares(lambda: Room(0, 0))
"""Takes no file of a segment that is gone, and gives none."""
SMALL: Final = 2 * PAGE
"""What a trace takes whose arrays fit into one page: a page for the header, and one for them."""


def new_store(
    clock: Callable[[], float] | None = None,
    *,
    memory_bytes: int = 2**24,
    spill_dir: Path | None = None,
    spill_bytes: int = 2**24,
    lease_seconds: float = 0.0,
    fields: Sequence[str] = TRAINING_ARRAY_FIELDS,
    strict: bool = False,
) -> ArrayStore:
    """A store that belongs to HOME."""
    limits = ArrayLimits(memory_bytes, spill_dir, spill_bytes, lease_seconds, tuple(fields), strict)
    store = ArrayStore(limits) if clock is None else ArrayStore(limits, clock=clock)
    store.attach(HOME, ArrayLimits(0))
    return store


def new_episode(
    name: str = "0", *, owner: str = "", traces: int = 1, branches: int = 1, tokens: int = 3
) -> Episode:
    """An episode with all three fields: in each trace a prompt that its branches share, and an answer of so
    many tokens for each."""
    episode = Episode(f"{name:>32}".replace(" ", "e"), "test", {}, owner=owner)
    for number in range(traces):
        trace = episode.new_trace()
        prompt = trace.add_node(Message("user"), range(2), routed_experts=experts(2, number))
        for branch in range(branches):
            add_answer(trace, prompt, tokens, seed=number * 100 + branch)
    return episode


def add_answer(trace: Trace, parent: int | None, tokens: int, seed: int = 0) -> int:
    """Add a sampled node with all three fields, two ids for each token."""
    counts = np.full(tokens, 2, np.int32)
    ids = np.arange(2 * tokens, dtype=np.int32) + seed
    return trace.add_node(
        Message("assistant"),
        range(tokens),
        parent=parent,
        sampled=True,
        routed_experts=experts(tokens, seed),
        sampling_mask=SamplingMask(ids, counts),
        top_logprobs=TopLogprobs(ids + 1, -ids.astype(np.float32), counts.copy()),
    )


def experts(tokens: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8 `[tokens, 2, 2]`, no zeros."""
    return np.random.default_rng(seed).integers(1, 256, (tokens, 2, 2), np.uint8)


def references(episode: Episode) -> list[dict[str, Any]]:
    """All that were written into the episode's traces, in order."""
    found: list[Any] = []
    for trace in episode.traces:
        listed = trace.info["training_arrays"]
        assert isinstance(listed, list)
        found += listed
    return found


def keys(episode: Episode) -> list[str]:
    """Those of the references."""
    return [reference["key"] for reference in references(episode)]


def expected_body(episode: Episode, reference: dict[str, Any]) -> bytes:
    """All arrays of a reference's branch end to end, as plain concatenation of the nodes' gives them. To be
    called while the nodes have them."""
    [trace] = [trace for trace in episode.traces if trace.id == reference.get("trace_id", trace.id)]
    nodes = [trace.nodes[index] for index in trace.path(reference["branch"])]
    body: list[Any] = [node.routed_experts for node in nodes]
    masks = [node.sampling_mask for node in nodes if node.sampling_mask is not None]
    heads = [node.top_logprobs for node in nodes if node.top_logprobs is not None]
    body += [mask.ids for mask in masks] + [mask.counts for mask in masks]
    body += [head.ids for head in heads] + [head.logprobs for head in heads] + [head.counts for head in heads]
    return b"".join(array.tobytes() for array in body if array is not None)


def body_of(store: ArrayStore, key: str) -> bytes:
    """A whole branch, fetched."""
    with store.open(key, (), 0, None) as fetch:
        return b"".join(fetch.pieces())


def put_into(memory: bytearray) -> Put:
    """Puts pieces of a segment into `memory`, which is as long as it."""

    def put(offset: int, piece: memoryview) -> None:
        assert offset + len(piece) <= len(memory)
        memory[offset : offset + len(piece)] = piece

    return put


def open_segments(pid: int | str = "self") -> int:
    """How many files without a name, in memory or on a disk, a process has open."""
    found = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/{pid}/fd/{name}").endswith(" (deleted)")
    return found


def is_empty(store: ArrayStore) -> bool:
    """Whether it holds nothing, for no fetch either."""
    stats = store.stats()
    return (store.held_arrays, store.held_array_bytes, stats.open_fetches, stats.held_episodes) == (
        0,
        0,
        0,
        0,
    )
