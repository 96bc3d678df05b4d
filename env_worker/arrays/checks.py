"""Whether a field may be trained on: which branches have a hole in it, and where.

Lengths are not looked at: a node takes no array that does not fit its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from env_worker.arrays.spec import ROUTED_EXPERTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from env_worker.domain import Node, SamplingMask, TopLogprobs


@dataclass(frozen=True, slots=True)
class FieldState:
    """A field on the path from a root to one node."""

    hole: str | None = None
    """The first hole of the path, which makes the field incomplete there; None if it is complete."""
    row_shape: tuple[int, ...] | None = None
    """`(layers, top_k)` of `routed_experts`; None while the path has no tokens, and for other fields."""
    unrouted: str | None = None
    """A hole as soon as tokens follow: the path's last token has a row of zeros."""


_SOUND: Final = FieldState()


def field_states(nodes: Sequence[Node], field: str) -> list[FieldState]:
    """The state of `field` on the path to each of `nodes`; those of the leaves are those of the branches.

    `routed_experts`: every node with tokens has rows, of one shape along the path. No row is all zero, but
    the one of the path's last token, which engines have not got yet. With `top_k` 1 expert 0 alone looks like
    that, so there only a node of several tokens must not be all zero. `sampling_mask` and `top_logprobs`:
    every node with sampled tokens has the field; not all its counts are zero, no id is negative, no logprob
    is NaN.

    Each node is looked at once; what is allocated meanwhile is a fraction of the node's arrays.
    """
    if all(getattr(node, field) is None for node in nodes):
        return [FieldState(f"absent: no node of the trace has {field}") for _ in nodes]
    states: list[FieldState] = []
    for index, node in enumerate(nodes):
        before = _SOUND if node.parent is None else states[node.parent]
        if before.hole is not None:
            after = before
        elif field == ROUTED_EXPERTS.field:
            after = _routing_after(before, index, node)
        else:
            hole = _csr_hole(node, field)
            after = before if hole is None else FieldState(f"node {index} of {hole}")
        states.append(after)
    return states


def told_row_shape(nodes: Sequence[Node]) -> tuple[int, ...]:
    """`(layers, top_k)` for a branch without tokens: that of the first node with rows, else of the first that
    has `routed_experts` at all. LookupError if none has.
    """
    shapes = [experts.shape for node in nodes if (experts := node.routed_experts) is not None]
    if not shapes:
        raise LookupError("no node of the trace has routed_experts; check that before")
    return next((shape for shape in shapes if shape[0]), shapes[0])[1:]


def _routing_after(before: FieldState, index: int, node: Node) -> FieldState:
    tokens = len(node.token_ids)
    if not tokens:
        return before
    if before.unrouted is not None:
        return FieldState(before.unrouted)
    name, experts = f"node {index} of {tokens} tokens", node.routed_experts
    if experts is None:
        return FieldState(f"{name} has no routed_experts")
    row_shape = experts.shape[1:]
    if 0 in row_shape:
        return FieldState(f"{name} has routed_experts of shape {experts.shape}, which holds no expert")
    if before.row_shape not in (None, row_shape):
        return FieldState(f"{name} has (layers, top_k) {row_shape}, the nodes before it {before.row_shape}")
    zeros = np.flatnonzero(~experts.any(axis=(1, 2)))
    if row_shape[-1] == 1:
        if len(zeros) == tokens > 1:
            return FieldState(f"{name} has routed_experts that are all zero")
    elif len(zeros):
        if zeros[0] != tokens - 1:
            return FieldState(f"{name} has a row of routed_experts that is all zero: row {zeros[0]}")
        unrouted = f"{name} has a last row of routed_experts that is all zero, and tokens follow it"
        return FieldState(None, row_shape, unrouted)
    return FieldState(None, row_shape)


def _csr_hole(node: Node, field: str) -> str | None:
    sampled = node.sampled_tokens
    if not sampled:
        return None
    value: SamplingMask | TopLogprobs | None = getattr(node, field)
    name = f"{sampled} sampled tokens"
    if value is None:
        return f"{name} has no {field}"
    if not value.counts.any():
        return f"{name} has {field}.counts that are all zero"
    if (least := value.ids.min()) < 0:
        return f"{name} has {field}.ids with the negative id {least}"
    logprobs = getattr(value, "logprobs", None)
    if logprobs is not None and np.isnan(logprobs).any():
        return f"{name} has {field}.logprobs with NaN at entry {np.isnan(logprobs).argmax()}"
    return None
