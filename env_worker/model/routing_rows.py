"""The routing rows of a turn: which of an engine's go to which tokens.

The engine has a row for each token that it has forwarded: for all but the last one of a turn, whose row the
next turn's prefill finds. Until then a copy of the row before stands in its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from env_worker.domain import RoutedExperts, Trace
    from env_worker.model.dialects.base import RoutingRows

ROUTED_EXPERTS: Final = "routed_experts"


def routing_hole(
    trace: Trace, parent: int | None, reused: int, tokens: int, routing: RoutingRows
) -> str | None:
    """Why `routing` has not the rows that a turn needs, of `tokens` tokens with its history, the first
    `reused` of them on the path to node `parent`. None if it has.
    """
    start, rows = routing
    needed, expected = max(reused - 1, 0), tokens - 1 - start
    if start > needed:
        return f"the engine gave rows from position {start} on, and they are needed from {needed} on"
    if len(rows) != expected:
        return f"the engine gave {len(rows)} rows from position {start} on, expected {expected}"
    before = _row_shape(trace, parent)
    if before not in (None, rows.shape[1:]):
        return f"the engine gave rows of (layers, top_k) {rows.shape[1:]}, in the turns before {before}"
    return None


def new_rows(reused: int, tokens: int, routing: RoutingRows) -> RoutedExperts:
    """Rows of the turn's `tokens - reused` new tokens, one or more, the last of them the placeholder; zeros
    where there is no row before it. A copy, as large as it is: the engine's whole answer is not held by it.
    """
    start, rows = routing
    made: RoutedExperts = np.zeros((tokens - reused, *rows.shape[1:]), rows.dtype)
    made[:-1] = rows[reused - start :]
    if len(rows):
        made[-1] = rows[-1]
    return made


def repair_placeholder(trace: Trace, parent: int | None, reused: int, routing: RoutingRows) -> None:
    """Give the last token on the path to `parent`, number `reused - 1`, its row, if it still has none of its
    own.
    """
    if (last := _placeholder(trace, parent)) is not None:
        row = len(trace.nodes[last].token_ids) - 1
        trace.repair_routing(last, row, routing.rows[reused - 1 - routing.start])


def fill_missing(trace: Trace, parent: int | None, reused: int, routing: RoutingRows) -> frozenset[int]:
    """Give nodes on the path to `parent`, of `reused` tokens together, rows that the engine did not give in
    their own turn, as far as it has given them now. A node is filled only together with the placeholder
    before it: or what is complete then would have that one in its midst. The nodes whose hole that was."""
    start, rows = routing
    node, end = parent, reused
    mended: set[int] = set()
    while node is not None:
        found = trace.nodes[node]
        begin = end - len(found.token_ids)
        if begin < start or begin == start > 0:
            break
        if begin < end and found.routing is None:
            before = _placeholder(trace, found.parent)
            found.routed_experts = rows[begin - start : end - start].copy()
            if ROUTED_EXPERTS in found.holes:
                mended.add(node)
            found.holes = {field: why for field, why in found.holes.items() if field != ROUTED_EXPERTS}
            if before is not None:
                last = len(trace.nodes[before].token_ids) - 1
                trace.repair_routing(before, last, rows[begin - 1 - start])
        node, end = found.parent, begin
    return frozenset(mended)


def _placeholder(trace: Trace, node: int | None) -> int | None:
    """The last node with tokens on the path to `node`, if it has rows and the last of them is a
    placeholder."""
    last = _last_with_tokens(trace, node)
    if last is None or trace.nodes[last].routing is None or _goes_on(trace, last):
        return None
    return last


def _row_shape(trace: Trace, node: int | None) -> tuple[int, ...] | None:
    """`(layers, top_k)` on the path to `node`."""
    while node is not None:
        routing = trace.nodes[node].routing
        if routing is not None and len(routing):
            return routing.shape[1:]
        node = trace.nodes[node].parent
    return None


def _last_with_tokens(trace: Trace, node: int | None) -> int | None:
    while node is not None and not len(trace.nodes[node].token_ids):
        node = trace.nodes[node].parent
    return node


def _goes_on(trace: Trace, node: int) -> bool:
    """Whether a token with a row follows `node`, of its own turn or of a later one: then the row of its last
    token is an engine's own, since it was given, or repaired, together with that one.
    """
    same_place = {node}
    for index, later in enumerate(trace.nodes[node + 1 :], node + 1):
        if later.parent in same_place:
            if not len(later.token_ids):
                same_place.add(index)
            elif later.routing is not None:
                return True
    return False
