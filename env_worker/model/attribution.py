"""Which tokens of an engine's turn belong to which message, and that turn as nodes of its trace.

Root to leaf, token ids are exactly what the engine saw and sampled, whatever history was rewritten.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from env_worker.model.offered import branch
from env_worker.model.routing_rows import (
    ROUTED_EXPERTS,
    fill_missing,
    new_rows,
    repair_placeholder,
    routing_hole,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from env_worker.domain import Int32Array, Message, RoutedExperts, Trace
    from env_worker.model.dialects.base import Answer

_NO_IDS: Final = np.empty(0, np.int32)
_NO_NODES: Final[frozenset[int]] = frozenset()


class Addition(NamedTuple):
    """A message that becomes a node, not sampled: its tokens, and the tools offered from there on."""

    message: Message
    token_ids: Int32Array = _NO_IDS
    tools_json: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a turn goes: behind node `parent`, whose path has the first `reused` tokens of the prompt.

    The messages of `added` follow. The last of them has all the rest of the prompt, since an engine tells no
    borders between messages; with none of them, the rest is `header`, int32, with which the answer's node
    begins. `rewritten` says that nodes of the history were left behind, whose messages `added` begins with.
    """

    parent: int | None
    added: tuple[Addition, ...]
    header: Int32Array
    reused: int
    rewritten: bool


class Written(NamedTuple):
    """A turn that is in its trace."""

    node: int
    """The index of the answer's node."""
    holes: Mapping[str, str]
    """What was asked for and is not in the nodes, each with why: the answer's, and rows that do not fit."""
    rewritten: bool
    mended: frozenset[int] = _NO_NODES
    """Earlier nodes whose missing routing rows came with this turn."""


def place(
    trace: Trace,
    parent: int | None,
    messages: Sequence[Message],
    prompt_ids: Int32Array | None,
    tools_json: str = "",
) -> Placement:
    """Where `messages` belong that were asked after node `parent` (None: at a root) with these tools ("" for
    none), as the engine's prompt, `prompt_ids` int32, tells. Only reads.

    They go behind the deepest node of `parent`'s path up to which the engine saw what the path holds. That is
    `parent`, unless history was rewritten: trimmed, or tokenised anew. Where the path has other tools, it is
    that of the branch with these (see `branch`). With `prompt_ids` None nothing is known of the tokens, and
    nothing has any. ValueError if there is no node `parent`.
    """
    own = branch(trace, parent, tools_json)
    path = () if own.parent is None else trace.path(own.parent)
    nodes = [trace.nodes[index] for index in path]
    if prompt_ids is None:
        kept, reused, rest = len(nodes), 0, _NO_IDS
    else:
        kept, reused = _shared([node.token_ids for node in nodes], prompt_ids)
        rest = prompt_ids[reused:]
    again = [Addition(node.message, tools_json=node.tools_json) for node in nodes[kept:]]
    again += map(Addition, own.again)
    added = [*again, *map(Addition, messages)]
    if added and not path:
        added[0] = added[0]._replace(tools_json=own.tools_json)
    if added:
        added[-1], rest = added[-1]._replace(token_ids=rest), _NO_IDS
    return Placement(path[kept - 1] if kept else None, tuple(added), rest, reused, rewritten=bool(again))


def write_turn(trace: Trace, placement: Placement, answer: Answer) -> Written:
    """Add the nodes of a turn, with all that `answer` has for their tokens, and with its holes.

    The rows of the new tokens come from `answer.routing`, but for the very last token's, for which an engine
    has none yet: there stands a copy of the row before. What stood there for the turn before is replaced by
    the row that this turn's prefill found, and earlier nodes that have no rows get those that came with this
    turn; nothing else of them changes. Rows that do not fit are a hole. Call it right after `place`, before
    anything else is written.
    """
    holes = dict(answer.holes)
    rows, mended = _routed(trace, placement, answer, holes)
    unrouted = {field: why for field, why in holes.items() if field == ROUTED_EXPERTS}
    parent, written = placement.parent, 0
    for message, ids, tools_json in placement.added:
        parent = trace.add_node(
            message,
            ids,
            parent=parent,
            tools_json=tools_json,
            routed_experts=_part(rows, written, len(ids)),
            holes=unrouted if len(ids) else None,
        )
        written += len(ids)
    sampled = _NO_IDS if answer.sampled_ids is None else answer.sampled_ids
    ids = np.concatenate((placement.header, sampled))
    node = trace.add_node(
        answer.message,
        ids,
        parent=parent,
        sampled=True,
        mask=np.arange(len(ids)) >= len(placement.header),
        logprobs=answer.logprobs,
        routed_experts=_part(rows, written, len(ids)),
        sampling_mask=answer.sampling_mask,
        top_logprobs=answer.top_logprobs,
        holes=holes,
    )
    return Written(node, holes, placement.rewritten, mended)


def _shared(parts: Sequence[Int32Array], prompt_ids: Int32Array) -> tuple[int, int]:
    """How many of `parts` the prompt begins with, and how many tokens that are."""
    if not parts:
        return 0, 0
    ends = list(accumulate(map(len, parts)))
    known = np.concatenate(parts)[: len(prompt_ids)]
    same = known == prompt_ids[: len(known)]
    equal = len(known) if same.all() else int(same.argmin())
    kept = bisect_right(ends, equal)
    return kept, ends[kept - 1] if kept else 0


def _routed(
    trace: Trace, placement: Placement, answer: Answer, holes: dict[str, str]
) -> tuple[RoutedExperts | None, frozenset[int]]:
    """The rows of the turn's new tokens, whose predecessor then has its own too; or their hole in `holes`.
    And the earlier nodes whose hole was mended."""
    routing, prompt, sampled = answer.routing, answer.prompt_ids, answer.sampled_ids
    if routing is None or prompt is None or sampled is None:
        return None, _NO_NODES
    parent, reused, tokens = placement.parent, placement.reused, len(prompt) + len(sampled)
    if tokens == reused:
        return None, _NO_NODES
    if hole := routing_hole(trace, parent, reused, tokens, routing):
        holes[ROUTED_EXPERTS] = hole
        return None, _NO_NODES
    repair_placeholder(trace, parent, reused, routing)
    mended = fill_missing(trace, parent, reused, routing)
    return new_rows(reused, tokens, routing), mended


def _part(rows: RoutedExperts | None, first: int, count: int) -> RoutedExperts | None:
    return None if rows is None or not count else rows[first : first + count]
