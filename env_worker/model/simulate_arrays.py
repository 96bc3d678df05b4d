"""Generators of token streams and training arrays that look like an engine's, at memory speed.

Every generator draws from the `numpy.random.Generator` that it is given and from nothing else, so one seed
gives one episode. Nothing is chosen element by element: routing rows are gathered from a table of expert
sets, and the ids of masks and heads are arithmetic progressions from the sampled id. Benchmarks therefore
measure the transport, not this.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from env_worker.domain import SamplingMask, TopLogprobs

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIRST_TEXT_ID: Final = 8
"""Ids below are for the chat template; ids of text start here."""
MIN_VOCABULARY: Final = 256
MAX_UINT8_EXPERTS: Final = 256
MAX_EXPERTS: Final = 4096

_BYTES_PER_TOKEN: Final = 4
_EXPERT_SETS: Final = 1024  # a power of two: an index into the table is a masked random integer
_MIN_NEGATIVE_LOGPROB: Final = 1e-3  # never certain, so that the rest of a head has mass left


def token_ids(text: str, vocabulary: int) -> NDArray[np.int32]:
    """Ids of `text`, int32 [ceil(utf-8 bytes / 4)] in [FIRST_TEXT_ID, vocabulary).

    Equal four-byte pieces get equal ids, whatever surrounds them.
    """
    data = text.encode()
    data += b"\0" * (-len(data) % _BYTES_PER_TOKEN)
    pieces = np.frombuffer(data, dtype="<u4")
    hashed = (pieces * np.uint32(0x9E3779B1)) >> np.uint32(7)
    return (hashed % np.uint32(vocabulary - FIRST_TEXT_ID)).astype(np.int32) + np.int32(FIRST_TEXT_ID)


def random_token_ids(rng: np.random.Generator, tokens: int, vocabulary: int) -> NDArray[np.int32]:
    """Uniform text ids, int32 [tokens]."""
    return rng.integers(FIRST_TEXT_ID, vocabulary, tokens, dtype=np.int32)


def logprobs(rng: np.random.Generator, tokens: int) -> NDArray[np.float32]:
    """Log-probabilities of sampled tokens, float32 [tokens], all below zero."""
    drawn = rng.standard_exponential(tokens, dtype=np.float32)
    return drawn * np.float32(-0.5) - np.float32(_MIN_NEGATIVE_LOGPROB)


def routed_experts(
    rng: np.random.Generator, tokens: int, *, layers: int, top_k: int, experts: int
) -> NDArray[Any]:
    """Expert ids, [tokens, layers, top_k], uint8 for up to 256 experts and uint16 beyond.

    The experts of one (token, layer) are distinct and a row is never all zero.
    Raises ValueError when `experts` is not in [2, MAX_EXPERTS] or `top_k` not in [1, experts].
    """
    table = _expert_sets(top_k, experts)
    drawn = np.frombuffer(rng.bytes(tokens * layers * 2), dtype="<u2") & np.uint16(_EXPERT_SETS - 1)
    return table.take(drawn, axis=0, mode="clip").reshape(tokens, layers, top_k)


def sampling_mask(
    rng: np.random.Generator, sampled: NDArray[np.int32], *, width: int, vocabulary: int
) -> SamplingMask:
    """Ids that survived the sampling filters: 1 to `width` distinct ids a token, the sampled one first."""
    counts = rng.integers(1, width + 1, len(sampled), dtype=np.int32)
    total = int(counts.sum())
    within = np.arange(total, dtype=np.int32) - np.repeat(np.cumsum(counts, dtype=np.int32) - counts, counts)
    strides = rng.integers(1, vocabulary // width + 1, len(sampled), dtype=np.int32)
    ids = (np.repeat(sampled, counts) + within * np.repeat(strides, counts)) % np.int32(vocabulary)
    return SamplingMask(ids=ids, counts=counts)


def top_logprobs(
    rng: np.random.Generator,
    sampled: NDArray[np.int32],
    sampled_logprobs: NDArray[np.float32],
    *,
    width: int,
    vocabulary: int,
) -> TopLogprobs:
    """The sampler's head: `width` distinct ids a token, the sampled one first with its own log-probability.

    The others share out what probability is left, halving from one to the next, so that a head never sums
    over 1.
    """
    strides = rng.integers(1, vocabulary // width + 1, (len(sampled), 1), dtype=np.int32)
    offsets = strides * np.arange(width, dtype=np.int32)
    ids = (sampled[:, np.newaxis] + offsets) % np.int32(vocabulary)
    rest = np.log(-np.expm1(sampled_logprobs))[:, np.newaxis]
    head = rest - np.float32(np.log(2.0)) * np.arange(width, dtype=np.float32)
    head[:, 0] = sampled_logprobs
    return TopLogprobs(
        ids=ids.astype(np.int32, copy=False).ravel(),
        logprobs=head.astype(np.float32, copy=False).ravel(),
        counts=np.full(len(sampled), width, dtype=np.int32),
    )


@lru_cache(maxsize=64)
def _expert_sets(top_k: int, experts: int) -> NDArray[Any]:
    """Random sets of `top_k` distinct experts, [_EXPERT_SETS, top_k]; the same in every process."""
    if not 2 <= experts <= MAX_EXPERTS:
        raise ValueError(
            f"experts is {experts}, but must be between 2 and {MAX_EXPERTS}: choose one of these"
        )
    if not 1 <= top_k <= experts:
        raise ValueError(f"top_k is {top_k}, but must be between 1 and experts ({experts}): lower top_k")
    # Alone in its row, expert 0 would look like a row that nobody filled in.
    first = 1 if top_k == 1 else 0
    draws = np.random.default_rng([top_k, experts]).random((_EXPERT_SETS, experts - first), dtype=np.float32)
    chosen = np.argsort(draws, axis=1, kind="stable")[:, :top_k] + first
    table = chosen.astype(np.uint8 if experts <= MAX_UINT8_EXPERTS else np.uint16)
    table.flags.writeable = False
    return table
