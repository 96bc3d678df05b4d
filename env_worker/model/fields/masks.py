"""Sampling masks: the ids that survived the sampling filters, a list for each sampled token."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from env_worker.domain import SamplingMask
from env_worker.model.fields.json_values import FieldError, get_list, integers, only

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from env_worker.domain import Int32Array

_PIECE: Final = 1 << 18
"""Ids that are looked at together: some 20 ms, in which no other thread runs."""


def sampling_mask(parent: Mapping[str, Any], key: str, sampled: Int32Array) -> SamplingMask:
    """The mask at `key`. A sampled token may have none (null, or an empty list: count 0), but not all.

    FieldError if it does not fit `sampled`, or a token's mask lacks the sampled id.
    """
    rows = get_list(parent, key, len(sampled))
    if not only(rows, list, type(None)):
        raise FieldError(f"{key} holds what is no list of ids for each sampled token")
    rows = [row or () for row in rows]
    counts = np.fromiter(map(len, rows), np.int32, len(rows))
    pieces: list[Int32Array] = []
    for part in _parts(counts):
        ids = integers(list(chain.from_iterable(rows[part])), key)
        own = sampled[part]
        tokens = np.repeat(np.arange(len(own)), counts[part])
        kept = counts[part] == 0
        kept[tokens[ids == own[tokens]]] = True
        if not kept.all():
            index = int(kept.argmin())
            raise FieldError(f"{key} of sampled token {part.start + index} lacks its own id {own[index]}")
        pieces.append(ids)
    if len(rows) and not counts.any():
        raise FieldError(f"{key} is empty for all {len(rows)} sampled tokens")
    return SamplingMask(ids=np.concatenate(pieces), counts=counts)


def _parts(counts: Int32Array) -> Iterator[slice]:
    """Tokens that together have about a piece of ids, in order; one part at least."""
    ends = np.cumsum(counts, dtype=np.int64)
    ids = int(ends[-1]) if len(ends) else 0
    borders = np.searchsorted(ends, np.arange(_PIECE, ids, _PIECE)).tolist()
    starts = sorted({0, *borders})
    return map(slice, starts, [*starts[1:], len(counts)])
