"""Token streams and training arrays of verifiers' nodes as those of ours, with a reason for what is amiss.

0.4.0 has lists where later versions have numpy arrays, and knows no heads. Duck-typed: the package is not
imported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from env_worker.domain import SamplingMask, TopLogprobs
from env_worker.domain.arrays import int32_vector
from env_worker.envs.verifiers.sampled import checked_versions, sampled_first
from env_worker.model.fields.json_values import FieldError
from env_worker.model.fields.logprobs import checked_logprobs
from env_worker.model.fields.masks import check_mask
from env_worker.model.fields.routing import check_experts

if TYPE_CHECKING:
    import numpy.typing as npt

    from env_worker.domain import Float32Array, Int32Array, Node, WeightVersionSpan
    from env_worker.model.dialects.base import EngineOptions


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
    mask, is_content = np.asarray(theirs.mask, np.bool_), np.asarray(theirs.is_content, np.bool_)
    none = Streams(np.zeros(0, np.int32), mask[:0], mask[:0], np.zeros(0, np.float32))
    try:
        token_ids = _token_ids(theirs.token_ids)
    except ValueError as error:
        none.holes["token_ids"] = f"{error}; all were left out"
        return none
    tokens, sampled = len(token_ids), int(np.count_nonzero(mask))
    if len(mask) != tokens or (sampled and not theirs.sampled):
        none.holes["token_ids"] = (
            f"verifiers gave {tokens} token ids with a mask of {len(mask)}, of which {sampled} are sampled, "
            f"for a node with sampled={bool(theirs.sampled)}; all were left out"
        )
        return none
    found = Streams(token_ids, mask, is_content, none.logprobs)
    if len(is_content) not in (0, tokens):
        found.holes["is_content"] = f"verifiers gave {len(is_content)} flags for {tokens} tokens"
        found.is_content = none.is_content
    try:
        found.logprobs = _logprobs(theirs.logprobs, sampled)
    except FieldError as error:
        found.holes["logprobs"] = str(error)
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


def set_sampled_arrays(ours: Node, theirs: Any, width: int | None = None) -> dict[str, str]:
    """Set sampling mask and head of a new node where verifiers has them, the head cut at `width` candidates
    (None: nobody knows how many were asked for); of those that do not fit, why.

    This is done on the environments' loop, since a node is whole when it is told, and what it takes there is
    little: half a millisecond for a million ids of masks, 5 for a million candidates. That is 30 for an
    answer of 200,000 tokens with masks of 50 and heads of 20, for which verifiers itself, as it reads that
    answer, holds the same loop for 10 seconds. In pieces, so what it takes beside the arrays is a few MB.
    """
    holes: dict[str, str] = {}
    sampled = ours.token_ids[ours.mask]
    if (mask := theirs.sampling_mask) is not None:
        try:
            ours.sampling_mask = SamplingMask(mask.ids, mask.counts)  # as many as there are tokens
            check_mask(ours.sampling_mask, "sampling_mask", sampled)
        except (ValueError, FieldError) as error:
            ours.sampling_mask = None
            holes["sampling_mask"] = str(error)
    if (head := getattr(theirs, "top_logprobs", None)) is not None:
        try:
            ours.top_logprobs = TopLogprobs(head.ids, head.logprobs, head.counts)
            ours.top_logprobs = sampled_first(ours.top_logprobs, sampled, ours.logprobs, width)
        except (ValueError, FieldError) as error:
            ours.top_logprobs = None
            holes["top_logprobs"] = str(error)
    return holes


def weight_versions(theirs: Any) -> tuple[WeightVersionSpan, ...]:
    """Which weights sampled which tokens of a node, where its engine has told. FieldError if that does not
    fit them."""
    spans = getattr(theirs, "weight_versions", None) or ()
    return checked_versions(spans, int(np.count_nonzero(theirs.mask)))


def absent(ours: Node) -> set[str]:
    """Which training arrays a sampled node has not got, of those that its tokens could have. Without token
    ids one cannot tell, and all could."""
    found = {"routed_experts"} if ours.routing is None else set[str]()
    if ours.sampled_tokens or not len(ours.token_ids):
        found |= {name for name in ("sampling_mask", "top_logprobs") if getattr(ours, name) is None}
    return found


def _token_ids(given: Any) -> Int32Array:
    ids = int32_vector(given, "token_ids", copy=False)
    if (least := ids.min(initial=0)) < 0:
        raise ValueError(f"token_ids holds {least}, expected 0 or more")
    return ids


def _logprobs(given: Any, sampled: int) -> Float32Array:
    values = np.asarray(given, np.float64)
    if len(values) not in (0, sampled):
        raise FieldError(f"verifiers gave {len(values)} log-probabilities for {sampled} tokens")
    return checked_logprobs(values)
