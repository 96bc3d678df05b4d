"""Whether a field may be trained on: which branches have a hole in it, and where.

Lengths are not looked at: a node takes no array that does not fit its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from env_worker.arrays.spec import FIELD_ARRAYS, ROUTED_EXPERTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from env_worker.domain import Node, SamplingMask, TopLogprobs
    from env_worker.domain.arrays import RoutedExperts
    from env_worker.domain.routing import Routing


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
_WORD: Final = np.dtype(np.uint64)
_AT_ONCE: Final = 500
"""With more elements numpy releases the interpreter: to wake other threads up takes longer than looking at
so many."""
_NO_ROWS: Final = np.empty(0, np.intp)
_FEW: Final = 8
"""Of so many rows, one may be copied to be looked at."""


def field_states(nodes: Sequence[Node], field: str) -> list[FieldState]:
    """The state of `field` on the path to each of `nodes`; those of the leaves are those of the branches.

    `routed_experts`: every node with tokens has rows, of one shape along the path. No row is all zero, but
    the one of the path's last token, which engines have not got yet. With `top_k` 1 expert 0 alone looks like
    that, so there only a node of several tokens must not be all zero. `sampling_mask` and `top_logprobs`:
    every node with sampled tokens has the field; not all its counts are zero, no id is negative, no logprob
    is NaN. A node whose `holes` name the field, and that has not got it, is a hole whatever its tokens: those
    that are missing may be tokens too. Its reason is part of the hole.

    Each node is looked at once; what is allocated meanwhile is a fraction of the node's arrays.
    """
    spec = FIELD_ARRAYS[field][0]
    if all(spec.of(node) is None for node in nodes):
        told = next((_told(field, node) for node in nodes if field in node.holes), field)
        return [FieldState(f"absent: no node of the trace has {told}") for _ in nodes]
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
    shapes = [routing.shape for node in nodes if (routing := node.routing) is not None]
    if not shapes:
        raise LookupError("no node of the trace has routed_experts; check that before")
    return next((shape for shape in shapes if shape[0]), shapes[0])[1:]


def _routing_after(before: FieldState, index: int, node: Node) -> FieldState:
    tokens, routing = len(node.token_ids), node.routing
    if not tokens and (routing is not None or ROUTED_EXPERTS.field not in node.holes):
        return before
    name = f"node {index} of {tokens} tokens"
    if routing is None:
        return FieldState(f"{name} has no {_told(ROUTED_EXPERTS.field, node)}")
    if before.unrouted is not None:
        return FieldState(before.unrouted)
    row_shape = routing.shape[1:]
    if 0 in row_shape:
        return FieldState(f"{name} has routed_experts of shape {routing.shape}, which holds no expert")
    if before.row_shape not in (None, row_shape):
        return FieldState(f"{name} has (layers, top_k) {row_shape}, the nodes before it {before.row_shape}")
    zeros = _zero_rows(routing)
    if row_shape[-1] == 1:
        if len(zeros) == tokens > 1:
            return FieldState(f"{name} has routed_experts that are all zero")
    elif len(zeros):
        if zeros[0] != tokens - 1:
            return FieldState(f"{name} has a row of routed_experts that is all zero: row {zeros[0]}")
        unrouted = f"{name} has a last row of routed_experts that is all zero, and tokens follow it"
        return FieldState(None, row_shape, unrouted)
    return FieldState(None, row_shape)


def _told(field: str, node: Node) -> str:
    """`field`, and why `node` has not got it, as far as it says so."""
    return f"{field}: {node.holes[field]}" if field in node.holes else field


def _zero_rows(routing: Routing) -> npt.NDArray[np.intp]:
    """Indices of the rows that are all zero, in order."""
    array, repairs = routing.parts
    zeros = _empty(array)
    for first, rows in repairs:
        others = zeros[(zeros < first) | (zeros >= first + len(rows))]
        zeros = np.sort(np.concatenate((others, first + _empty(rows))))
    return zeros


def _empty(experts: RoutedExperts) -> npt.NDArray[np.intp]:
    # The experts of one layer differ, so that the first bytes of most rows are not all zero.
    row_bytes = experts.strides[0]
    if not experts.flags.c_contiguous or row_bytes < _WORD.itemsize:
        return np.flatnonzero(~experts.any(axis=(1, 2)))
    words = np.ndarray(len(experts), _WORD, experts, strides=(row_bytes,))
    if all(words[first : first + _AT_ONCE].all() for first in range(0, len(words), _AT_ONCE)):
        return _NO_ROWS
    doubtful = np.flatnonzero(words == 0)
    if len(doubtful) * _FEW > len(experts):
        return np.flatnonzero(~experts.any(axis=(1, 2)))
    return doubtful[~experts[doubtful].any(axis=(1, 2))]


def _csr_hole(node: Node, field: str) -> str | None:
    sampled = node.sampled_tokens
    value: SamplingMask | TopLogprobs | None = getattr(node, field)
    if not sampled and (value is not None or field not in node.holes):
        return None
    name = f"{sampled} sampled tokens"
    if value is None:
        return f"{name} has no {_told(field, node)}"
    if not value.counts.any():
        return f"{name} has {field}.counts that are all zero"
    if (least := value.ids.min()) < 0:
        return f"{name} has {field}.ids with the negative id {least}"
    logprobs = getattr(value, "logprobs", None)
    if logprobs is not None and np.isnan(logprobs).any():
        return f"{name} has {field}.logprobs with NaN at entry {np.isnan(logprobs).argmax()}"
    return None
