"""What the scripted model answers per token, each value telling its position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tests.engine.tokens import VOCABULARY, Ids

if TYPE_CHECKING:
    from collections.abc import Sequence

Floats: TypeAlias = NDArray[np.float64]

FLOOR = -9999.0
"""What vLLM writes for a log-probability that it has not, or that JSON cannot write."""


class Ragged(NamedTuple):
    """Rows of different lengths: `ids` flat, `counts` of each row; int32 both."""

    ids: Ids
    counts: Ids

    def rows(self) -> list[list[int]]:
        """The rows, as lists."""
        flat, ends = self.ids.tolist(), np.cumsum(self.counts).tolist()
        return [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def expected_routing(
    positions: Sequence[int] | NDArray[Any], layers: int = 4, top_k: int = 2, experts: int = 64
) -> NDArray[Any]:
    """Expert ids of positions of prompt and sampled tokens as one sequence: `[positions, layers, top_k]`,
    `(arange(layers * top_k) + position) % experts`; uint8 up to 256 experts, else uint16."""
    dtype = np.uint8 if experts <= 256 else np.uint16
    first = (np.asarray(positions, np.int64) % experts).astype(np.uint32)
    pattern = np.arange(layers * top_k, dtype=np.uint32).reshape(layers, top_k)
    return ((pattern + first[:, None, None]) % experts).astype(dtype)


def expected_logprobs(count: int) -> Floats:
    """`-0.1 - 0.001 * i` of sampled token i, float64 `[count]`."""
    return -0.1 - 0.001 * np.arange(count, dtype=np.float64)


def expected_mask(sampled: Ids) -> Ragged:
    """Kept ids of each sampled token: token i has `1 + i % 4`: its own, and the ids behind it."""
    counts = 1 + np.arange(len(sampled), dtype=np.int32) % 4
    within = np.arange(counts.sum(), dtype=np.int32) - np.repeat(np.cumsum(counts) - counts, counts)
    return Ragged(((np.repeat(sampled, counts) + within) % VOCABULARY).astype(np.int32), counts)


class Heads(NamedTuple):
    """Candidates in the engine's order, the sampled one first: `ids`, `logprobs` and `ranks`, each
    `[tokens, candidates]`."""

    ids: Ids
    logprobs: Floats
    ranks: Ids


def expected_heads(sampled: Ids, count: int) -> Heads:
    """`count` candidates of each sampled token: itself, of rank 1, then the ids behind it, each 0.5 below
    the one before."""
    steps = np.arange(count, dtype=np.int32)
    ids = (sampled[:, None] + steps) % VOCABULARY
    ranks = np.broadcast_to(steps + 1, ids.shape).astype(np.int32)
    return Heads(ids.astype(np.int32), expected_logprobs(len(sampled))[:, None] - 0.5 * steps, ranks)


def outside_heads(sampled: Ids, count: int) -> Heads:
    """The sampled token, of rank `count + 5`, and the `count` best candidates, which it is not among."""
    best = np.arange(1, count + 1, dtype=np.int32)
    ids = np.concatenate([sampled[:, None], (sampled[:, None] + best) % VOCABULARY], axis=1)
    above = np.broadcast_to(-0.001 * best, (len(sampled), count))
    logprobs = np.concatenate([expected_logprobs(len(sampled))[:, None], above], axis=1)
    ranks = np.broadcast_to(np.concatenate([[count + 5], best]), ids.shape)
    return Heads(ids.astype(np.int32), logprobs, ranks.astype(np.int32))


def repeated_heads(sampled: Ids, count: int) -> Heads:
    """The sampled token first, and again at its rank: 2, behind a better candidate."""
    heads = expected_heads(sampled, count)
    ids = np.concatenate(
        [sampled[:, None], (sampled[:, None] + 1) % VOCABULARY, sampled[:, None], heads.ids[:, 2:]], axis=1
    )
    better = np.full((len(sampled), 1), -0.05)
    logprobs = np.concatenate(
        [heads.logprobs[:, :1], better, heads.logprobs[:, :1], heads.logprobs[:, 2:]], axis=1
    )
    ranks = np.concatenate([np.full((len(sampled), 1), 2), heads.ranks], axis=1)
    return Heads(ids.astype(np.int32), logprobs, ranks.astype(np.int32))


def expected_versions(labels: Sequence[str], count: int) -> list[dict[str, Any]]:
    """Spans of weight versions over `count` sampled tokens: equal parts, in this order."""
    borders = [count * part // len(labels) for part in range(len(labels) + 1)] if labels else []
    spans = zip(labels, borders, borders[1:], strict=False)
    return [{"version": label, "start": start, "end": end} for label, start, end in spans if start < end]
