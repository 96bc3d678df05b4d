"""The tools that the branches of a trace were prompted with.

A chat template renders tools at the start of the prompt, so a branch has one set of them, which its root
tells: where that says nothing, they are those of the trace.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from env_worker.domain.text import decode_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from env_worker.domain import Message, Trace

_NONE: Final = "[]"


class Branch(NamedTuple):
    """Where a turn goes that was asked with some tools: behind node `parent`, after the messages of `again`.

    `parent` is None and `again` the whole history where the branch so far has other tools: the prompt was
    another from its start. `tools_json` is what the first node says of its tools if it is a root.
    """

    parent: int | None
    again: tuple[Message, ...]
    tools_json: str


def offer(trace: Trace, tools: Sequence[Mapping[str, Any]]) -> str:
    """`tools` as JSON text, "" for none. The trace tells the first that it is asked with, unless branches
    without any say so by telling nothing. TypeError or ValueError if they are not JSON."""
    text = as_text(tools)
    if text and not _same(text, trace.tools_json):
        if trace.tools_json or any(node.sampled for node in trace.nodes):
            decode_json(text, "tools", list)  # a root will tell them, when the model has answered
        else:
            trace.set_tools(text)
    return text


def as_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """The JSON text of an array, "" for none. TypeError or ValueError if there is none."""
    return json.dumps(list(tools), ensure_ascii=False) if tools else ""


def branch(trace: Trace, parent: int | None, tools_json: str) -> Branch:
    """Where a turn belongs that was asked after node `parent` (None: at a root) with these tools, "" for
    none. ValueError if there is no node `parent`."""
    told = "" if _same(tools_json, trace.tools_json) else tools_json or _NONE
    if parent is None:
        return Branch(None, (), told)
    if goes_on(trace, parent, tools_json):
        return Branch(parent, (), "")
    return Branch(None, tuple(trace.nodes[index].message for index in trace.path(parent)), told)


def goes_on(trace: Trace, parent: int, tools_json: str) -> bool:
    """Whether the branch up to node `parent` has these tools. ValueError if there is no such node."""
    told = [said for index in trace.path(parent) if (said := trace.nodes[index].tools_json)]
    return _same(tools_json, told[-1] if told else trace.tools_json)


def _same(one: str, other: str) -> bool:
    """Whether two texts are the same tools, in whatever order their keys are. "" and [] are none."""
    return one == other or _canonical(one) == _canonical(other)


def _canonical(tools_json: str) -> str:
    return json.dumps(json.loads(tools_json or _NONE), sort_keys=True)
