"""Checking a whole episode once, at its end. Pure, and fast where nothing is wrong."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np

from env_client.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envtrio.v1.episode_pb2 import Episode, Node, Trace

_TOKEN_BYTES: Final = 4
_LOGPROB_BYTES: Final = 4


def check_episode(episode: Episode) -> None:
    """Check that an assembled episode does not contradict itself.

    Parents point backwards; token streams have the lengths and values that episode.proto promises; calls and
    links name nodes that exist; JSON texts parse; rewards and metrics are finite.

    Raises:
        ValidationError: naming trace, node, field, what was found and what was expected.
    """
    sizes = {trace.header.trace_id: len(trace.nodes) for trace in episode.traces}
    for trace in episode.traces:
        # Each walk over a repeated field makes Python objects of its messages: one walk, one list.
        nodes = list(trace.nodes)
        _check_parents(trace, nodes)
        _check_streams(trace, nodes)
        _check_references(trace, sizes)
        _check_json(trace, nodes)
        _check_numbers(trace)


def _check_parents(trace: Trace, nodes: Sequence[Node]) -> None:
    for index, node in enumerate(nodes):
        # A root's absent parent reads as 0, which is before every node but the first.
        if node.parent >= index and node.HasField("parent"):
            _fail(trace, f"nodes[{index}].parent", node.parent, f"an earlier node than {index}, or none")


def _check_streams(trace: Trace, nodes: Sequence[Node]) -> None:
    token_bytes = [len(node.token_ids) for node in nodes]
    for index, size in enumerate(token_bytes):
        if size % _TOKEN_BYTES:
            _fail(trace, f"nodes[{index}].token_ids", f"{size} bytes", f"a multiple of {_TOKEN_BYTES}")
    tokens = [size // _TOKEN_BYTES for size in token_bytes]

    masks = [node.mask for node in nodes]
    _check_lengths(trace, "mask", masks, tokens, may_be_empty=False)
    _check_flags(trace, "mask", masks)
    contents = [node.is_content for node in nodes]
    _check_lengths(trace, "is_content", contents, tokens, may_be_empty=True)
    _check_flags(trace, "is_content", contents)

    logprob_bytes = [mask.count(1) * _LOGPROB_BYTES for mask in masks]
    _check_lengths(trace, "logprobs", [node.logprobs for node in nodes], logprob_bytes, may_be_empty=True)


def _check_lengths(
    trace: Trace, field: str, streams: Sequence[bytes], expected: list[int], *, may_be_empty: bool
) -> None:
    found = list(map(len, streams))
    if found == expected:
        return
    for index, (size, wanted) in enumerate(zip(found, expected, strict=True)):
        if size != wanted and (size or not may_be_empty):
            or_none = " or none" if may_be_empty else ""
            _fail(trace, f"nodes[{index}].{field}", f"{size} bytes", f"{wanted} bytes{or_none}")


def _check_flags(trace: Trace, field: str, streams: Sequence[bytes]) -> None:
    # All nodes at once: a call into numpy costs as much as a hundred tokens.
    flags = np.frombuffer(b"".join(streams), np.uint8)
    if flags.size and flags.max() > 1:
        for index, stream in enumerate(streams):
            wrong = np.flatnonzero(np.frombuffer(stream, np.uint8) > 1)
            if wrong.size:
                _fail(trace, f"nodes[{index}].{field}[{wrong[0]}]", stream[wrong[0]], "0 or 1")


def _check_references(trace: Trace, sizes: Mapping[str, int]) -> None:
    count = len(trace.nodes)
    for index, call in enumerate(trace.calls):
        # An absent node reads as 0.
        if call.node >= count and call.HasField("node"):
            _fail(trace, f"calls[{index}].node", call.node, f"a node below {count}")
    for index, link in enumerate(trace.links):
        if link.source >= count:
            _fail(trace, f"links[{index}].source", link.source, f"a node below {count}")
        other = link.target_trace_id or trace.header.trace_id
        if other not in sizes:
            _fail(trace, f"links[{index}].target_trace_id", repr(other), f"one of {sorted(sizes)}")
        if link.target >= sizes[other]:
            _fail(trace, f"links[{index}].target", link.target, f"a node below {sizes[other]} of {other!r}")


def _check_json(trace: Trace, nodes: Sequence[Node]) -> None:
    for key, text in trace.info_json.items():
        _parsed(trace, f"info_json[{key!r}]", text)
    if trace.HasField("tools_json"):
        _check_tools(trace, "tools_json", trace.tools_json)
    for index, node in enumerate(nodes):
        if node.tools_json:
            _check_tools(trace, f"nodes[{index}].tools_json", node.tools_json)


def _check_tools(trace: Trace, field: str, text: str) -> None:
    value = _parsed(trace, field, text)
    if not isinstance(value, list):
        _fail(trace, field, f"a JSON {type(value).__name__}", "a JSON list")


def _parsed(trace: Trace, field: str, text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        _fail(trace, field, f"{text[:40]!r} ({error})", "JSON text")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _check_numbers(trace: Trace) -> None:
    for key, reward in trace.rewards.items():
        # An absent value reads as 0.
        if not (math.isfinite(reward.value) and math.isfinite(reward.weight)):
            found = f"value {reward.value}, weight {reward.weight}"
            _fail(trace, f"rewards[{key!r}]", found, "finite numbers")
    for key, metric in trace.metrics.items():
        if not math.isfinite(metric):
            _fail(trace, f"metrics[{key!r}]", metric, "a finite number")


def _fail(trace: Trace, field: str, found: object, expected: str) -> NoReturn:
    raise ValidationError(
        f"trace {trace.header.trace_id!r}, {field}: found {found}, expected {expected}. "
        "The run was cancelled; report it with the worker's log."
    )
