"""Token streams and training arrays of verifiers' nodes as those of ours, with a reason for what is amiss.

0.4.0 has lists where later versions have numpy arrays, and knows no heads. Duck-typed: the package is not
imported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from env_worker.domain import SamplingMask, TopLogprobs
from env_worker.model.fields.json_values import FieldError
from env_worker.model.fields.routing import check_experts

if TYPE_CHECKING:
    import numpy.typing as npt

    from env_worker.domain import Node
    from env_worker.model.dialects.base import EngineOptions

MISSING_LOGPROB: Final = -9999.0
"""Stands in a head for a candidate that the sampling filters have removed: no log-probability."""


@dataclass(slots=True)
class Streams:
    """What of a node is streamed, as `Trace.add_node` takes it, and why some of it is left out."""

    token_ids: npt.NDArray[Any]
    mask: npt.NDArray[Any]
    is_content: npt.NDArray[Any]
    logprobs: npt.NDArray[Any]
    holes: dict[str, str] = field(default_factory=dict)


def streams(theirs: Any) -> Streams:
    """The streams of a node that fit each other: int32, bool, bool and float32."""
    found = Streams(
        np.asarray(theirs.token_ids, np.int32),
        np.asarray(theirs.mask, np.bool_),
        np.asarray(theirs.is_content, np.bool_),
        np.asarray(theirs.logprobs, np.float32),
    )
    tokens, none = len(found.token_ids), np.zeros(0, np.bool_)
    if len(found.mask) != tokens or (found.mask.any() and not theirs.sampled):
        found.holes["token_ids"] = (
            f"verifiers gave {tokens} token ids with a mask of {len(found.mask)}, of which "
            f"{np.count_nonzero(found.mask)} are sampled, for a node with sampled={bool(theirs.sampled)}; "
            "all were left out"
        )
        return Streams(found.token_ids[:0], none, none, found.logprobs[:0], found.holes)
    sampled = int(np.count_nonzero(found.mask))
    if len(found.is_content) not in (0, tokens):
        found.holes["is_content"] = f"verifiers gave {len(found.is_content)} flags for {tokens} tokens"
        found.is_content = none
    if len(found.logprobs) not in (0, sampled):
        found.holes["logprobs"] = (
            f"verifiers gave {len(found.logprobs)} log-probabilities for {sampled} tokens"
        )
        found.logprobs = found.logprobs[:0]
    return found


def set_routing(ours: Node, rows: Any, options: EngineOptions) -> str:
    """Set `routed_experts`, without a copy; else why there is none. `rows` are `[tokens, layers, top_k]` or
    None."""
    ours.routed_experts = None
    if rows is None:
        return ""
    try:
        ours.routed_experts = rows
        if len(rows) > 1 or rows.any():  # of one layer's one expert, that may be the first
            check_experts(rows, options)
    except (ValueError, FieldError) as error:
        ours.routed_experts = None
        return str(error)
    return ""


def set_sampled_arrays(ours: Node, theirs: Any) -> dict[str, str]:
    """Set sampling mask and head of a new node where verifiers has them; of those that do not fit, why."""
    holes: dict[str, str] = {}
    if (mask := theirs.sampling_mask) is not None:
        try:
            ours.sampling_mask = SamplingMask(mask.ids, mask.counts)
        except ValueError as error:
            holes["sampling_mask"] = str(error)
    if (head := getattr(theirs, "top_logprobs", None)) is not None:
        try:
            ours.top_logprobs = _without_missing(TopLogprobs(head.ids, head.logprobs, head.counts))
        except ValueError as error:
            holes["top_logprobs"] = str(error)
    return holes


def absent(ours: Node) -> set[str]:
    """Which training arrays a sampled node has not got, of those that its tokens could have. Without token
    ids one cannot tell, and all could."""
    found = {"routed_experts"} if ours.routing is None else set[str]()
    if ours.sampled_tokens or not len(ours.token_ids):
        found |= {name for name in ("sampling_mask", "top_logprobs") if getattr(ours, name) is None}
    return found


def _without_missing(head: TopLogprobs) -> TopLogprobs:
    there = head.logprobs != MISSING_LOGPROB
    if there.all():
        return head
    token = np.repeat(np.arange(len(head.counts)), head.counts)
    counts = np.bincount(token[there], minlength=len(head.counts)).astype(np.int32)
    return TopLogprobs(head.ids[there], head.logprobs[there], counts)
