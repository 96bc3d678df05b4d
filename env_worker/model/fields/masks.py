"""Sampling masks: the ids that survived the sampling filters, a list for each sampled token."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from env_worker.domain import SamplingMask
from env_worker.model.fields.json_values import FieldError, get_list, integers, only

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.domain import Int32Array


def sampling_mask(parent: Mapping[str, Any], key: str, sampled: Int32Array) -> SamplingMask:
    """The mask at `key`. A sampled token may have none (null, or an empty list: count 0), but not all.

    FieldError if it does not fit `sampled`, or a token's mask lacks the sampled id.
    """
    rows = get_list(parent, key, len(sampled))
    if not only(rows, list, type(None)):
        raise FieldError(f"{key} holds what is no list of ids for each sampled token")
    rows = [row or () for row in rows]
    counts = np.fromiter(map(len, rows), np.int32, len(rows))
    ids = integers(list(chain.from_iterable(rows)), key)
    if len(rows) and not len(ids):
        raise FieldError(f"{key} is empty for all {len(rows)} sampled tokens")
    tokens = np.repeat(np.arange(len(rows)), counts)
    kept = counts == 0
    kept[tokens[ids == sampled[tokens]]] = True
    if not kept.all():
        index = int(kept.argmin())
        raise FieldError(f"{key} of sampled token {index} lacks its own id {sampled[index]}")
    return SamplingMask(ids=ids, counts=counts)
