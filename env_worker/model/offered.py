"""The tools that the branches of a trace were prompted with.

A chat template renders tools at the start of the prompt, so a branch has one set of them, which its root
tells: where that says nothing, they are those of the trace.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from env_worker.domain.text import decode_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from env_worker.domain import Message, Node, Trace

_NONE: Final = "[]"
_CACHED_TEXTS: Final = 64
_CACHED_CHARACTERS: Final = 1 << 17
"""Environments offer the same tools turn by turn. Longer texts are compared anew, in milliseconds."""


class Branch(NamedTuple):
    """Where a turn goes that was asked with some tools: behind node `parent`, after the messages of `again`.

    `again` is what the branch with these tools does not have yet of the history: all of it where `parent` is
    None, since there is no such branch, and nothing where the turn goes on with the branch that it was asked
    on. `tools_json` is what the first node says of its tools if it is a root.
    """

    parent: int | None
    again: tuple[Message, ...]
    tools_json: str


def offer(trace: Trace, tools: Sequence[Mapping[str, Any]]) -> str:
    """`tools` as JSON text, "" for none. The trace tells the first that it is asked with, unless branches
    without any say so by telling nothing. TypeError or ValueError if they are not JSON."""
    text = json.dumps(list(tools), ensure_ascii=False) if tools else ""
    if text and not _same(text, trace.tools_json):
        # Else a root will tell them, when the model has answered.
        first = not trace.tools_json and not any(node.sampled for node in trace.nodes)
        if first:
            trace.set_tools(text)
    return text


def branch(trace: Trace, parent: int | None, tools_json: str) -> Branch:
    """Where a turn belongs that was asked after node `parent` (None: at a root) with these tools, "" for
    none. ValueError if there is no node `parent`."""
    history: tuple[Message, ...] = ()
    if parent is not None:
        nodes = [trace.nodes[index] for index in trace.path(parent)]
        told = [said for node in nodes if (said := node.tools_json)]
        if _same(tools_json, told[-1] if told else trace.tools_json):
            return Branch(parent, (), "")
        history = tuple(node.message for node in nodes)
    behind, shared = _longest(trace, history, tools_json)
    told_by_root = "" if _same(tools_json, trace.tools_json) else tools_json or _NONE
    return Branch(behind, history[shared:], told_by_root)


def _longest(trace: Trace, history: Sequence[Message], tools_json: str) -> tuple[int | None, int]:
    """The node up to which a branch with these tools has the most of `history`, and how many messages that
    are: else an environment that takes its tools away and gives them back would have all of its history
    again at each turn."""
    behind, most = None, 0
    depths: dict[int | None, int] = {None: 0}
    for index, node in enumerate(trace.nodes if history else ()):
        depth = depths.get(node.parent)
        if depth is None or depth == len(history) or node.message != history[depth]:
            continue
        if not _has(node, tools_json, trace.tools_json):
            continue
        depths[index] = depth + 1
        if depth + 1 > most:
            behind, most = index, depth + 1
    return behind, most


def _has(node: Node, tools_json: str, of_trace: str) -> bool:
    if node.parent is None:
        return _same(node.tools_json or of_trace, tools_json)
    return not node.tools_json or _same(node.tools_json, tools_json)


def _same(one: str, other: str) -> bool:
    """Whether two texts are the same tools, in whatever order their keys are. "" and [] are none. ValueError
    if one of two that differ is not JSON."""
    return one == other or _canonical(one) == _canonical(other)


def _canonical(tools_json: str) -> str:
    return _cached(tools_json) if len(tools_json) <= _CACHED_CHARACTERS else _sorted(tools_json)


def _sorted(tools_json: str) -> str:
    return json.dumps(decode_json(tools_json or _NONE, "tools", list), sort_keys=True)


_cached: Final = lru_cache(_CACHED_TEXTS)(_sorted)
