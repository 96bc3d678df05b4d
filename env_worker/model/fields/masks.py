"""Sampling masks: the ids that survived the sampling filters, a list for each sampled token."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from env_worker.domain import SamplingMask
from env_worker.model.fields.json_values import FieldError, get_list, integers, only

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from env_worker.domain import Int32Array

_PIECE: Final = 1 << 18
"""Ids that are looked at together: half a millisecond where they are an array, some 20 ms in which no other
thread runs where they are a list."""


class Piece(NamedTuple):
    """Sampled tokens that together have about a piece of ids, and where those are."""

    tokens: slice
    ids: slice


def sampling_mask(parent: Mapping[str, Any], key: str, sampled: Int32Array) -> SamplingMask:
    """The mask at `key`. A sampled token may have none (null, or an empty list: count 0), but not all.

    FieldError if it does not fit `sampled`, or a token's mask lacks the sampled id.
    """
    rows = get_list(parent, key, len(sampled))
    if not only(rows, list, type(None)):
        raise FieldError(f"{key} holds what is no list of ids for each sampled token")
    rows = [row or () for row in rows]
    counts = np.fromiter(map(len, rows), np.int32, len(rows))
    found: list[Int32Array] = []
    for piece in pieces(counts):
        ids = integers(list(chain.from_iterable(rows[piece.tokens])), key)
        _check_own(key, ids, counts, sampled, piece.tokens)
        found.append(ids)
    _check_any(key, counts)
    return SamplingMask(ids=np.concatenate(found), counts=counts)


def check_mask(mask: SamplingMask, key: str, sampled: Int32Array) -> None:
    """FieldError if `mask`, which has a count for each of `sampled`, holds what is no id, is without the
    sampled id at a token that has a mask, or is empty for all."""
    for piece in pieces(mask.counts):
        ids = mask.ids[piece.ids]
        check_ids(key, ids)
        _check_own(key, ids, mask.counts, sampled, piece.tokens)
    _check_any(key, mask.counts)


def check_ids(key: str, ids: Int32Array) -> None:
    """FieldError if one is negative."""
    if (least := ids.min(initial=0)) < 0:
        raise FieldError(f"{key} holds the id {least}, expected 0 or more")


def pieces(counts: Int32Array) -> Iterator[Piece]:
    """All tokens, of which each has so many ids, in order; one piece at least."""
    ends = np.cumsum(counts, dtype=np.int64)
    ids = int(ends[-1]) if len(ends) else 0
    borders = np.searchsorted(ends, np.arange(_PIECE, ids, _PIECE)).tolist()
    firsts = sorted({0, *borders})
    starts = [int(ends[first - 1]) if first else 0 for first in firsts]
    return map(Piece, map(slice, firsts, [*firsts[1:], len(counts)]), map(slice, starts, [*starts[1:], ids]))


def _check_own(key: str, ids: Int32Array, counts: Int32Array, sampled: Int32Array, tokens: slice) -> None:
    own, counts = sampled[tokens], counts[tokens]
    kept = counts == 0
    some = np.flatnonzero(~kept)
    if len(some):
        starts = np.cumsum(counts) - counts
        kept[some] = np.logical_or.reduceat(ids == np.repeat(own, counts), starts[some])
    if not kept.all():
        index = int(kept.argmin())
        raise FieldError(f"{key} of sampled token {tokens.start + index} lacks its own id {own[index]}")


def _check_any(key: str, counts: Int32Array) -> None:
    if len(counts) and not counts.any():
        raise FieldError(f"{key} is empty for all {len(counts)} sampled tokens")
