"""Checking a whole episode once, at its end. Pure, and vectorised over each trace's nodes."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np

from env_client.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envtrio.v1.episode_pb2 import Episode, Trace
    from numpy.typing import NDArray

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
        _check_parents(trace)
        _check_streams(trace)
        _check_references(trace, sizes)
        _check_json(trace)
        _check_numbers(trace)


def _check_parents(trace: Trace) -> None:
    # A root counts as -1, which is before every node.
    parents = np.fromiter(
        (node.parent if node.HasField("parent") else -1 for node in trace.nodes), np.int64, len(trace.nodes)
    )
    indices = np.arange(len(parents))
    bad = _first(parents >= indices)
    if bad is not None:
        _fail(trace, f"nodes[{bad}].parent", parents[bad], f"an earlier node than {bad}, or none")


def _check_streams(trace: Trace) -> None:
    nodes = trace.nodes
    token_bytes = _lengths([node.token_ids for node in nodes])
    bad = _first(token_bytes % _TOKEN_BYTES != 0)
    if bad is not None:
        _fail(trace, f"nodes[{bad}].token_ids", f"{token_bytes[bad]} bytes", f"a multiple of {_TOKEN_BYTES}")
    tokens = token_bytes // _TOKEN_BYTES

    masks = [node.mask for node in nodes]
    _check_lengths(trace, "mask", _lengths(masks), tokens, may_be_empty=False)
    _check_flags(trace, "mask", masks)
    contents = [node.is_content for node in nodes]
    _check_lengths(trace, "is_content", _lengths(contents), tokens, may_be_empty=True)
    _check_flags(trace, "is_content", contents)

    sampled = np.fromiter((flags.count(1) for flags in masks), np.int64, len(masks))
    logprobs = _lengths([node.logprobs for node in nodes])
    _check_lengths(trace, "logprobs", logprobs, sampled * _LOGPROB_BYTES, may_be_empty=True)


def _check_lengths(
    trace: Trace, field: str, found: NDArray[np.int64], expected: NDArray[np.int64], *, may_be_empty: bool
) -> None:
    wrong = found != expected
    if may_be_empty:
        wrong &= found != 0
    bad = _first(wrong)
    if bad is not None:
        wanted = f"{expected[bad]} bytes" + (" or none" if may_be_empty else "")
        _fail(trace, f"nodes[{bad}].{field}", f"{found[bad]} bytes", wanted)


def _check_flags(trace: Trace, field: str, streams: Sequence[bytes]) -> None:
    flags = np.frombuffer(b"".join(streams), np.uint8)
    if flags.size and flags.max() > 1:
        for index, stream in enumerate(streams):
            bad = _first(np.frombuffer(stream, np.uint8) > 1)
            if bad is not None:
                _fail(trace, f"nodes[{index}].{field}[{bad}]", stream[bad], "0 or 1")


def _check_references(trace: Trace, sizes: Mapping[str, int]) -> None:
    count = len(trace.nodes)
    for index, call in enumerate(trace.calls):
        if call.HasField("node") and call.node >= count:
            _fail(trace, f"calls[{index}].node", call.node, f"a node below {count}")
    for index, link in enumerate(trace.links):
        if link.source >= count:
            _fail(trace, f"links[{index}].source", link.source, f"a node below {count}")
        other = link.target_trace_id or trace.header.trace_id
        if other not in sizes:
            _fail(trace, f"links[{index}].target_trace_id", repr(other), f"one of {sorted(sizes)}")
        if link.target >= sizes[other]:
            _fail(trace, f"links[{index}].target", link.target, f"a node below {sizes[other]} of {other!r}")


def _check_json(trace: Trace) -> None:
    for key, text in trace.info_json.items():
        _parsed(trace, f"info_json[{key!r}]", text)
    if trace.HasField("tools_json"):
        _check_tools(trace, "tools_json", trace.tools_json)
    for index, node in enumerate(trace.nodes):
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


def _lengths(streams: Sequence[bytes]) -> NDArray[np.int64]:
    return np.fromiter(map(len, streams), np.int64, len(streams))


def _first(wrong: NDArray[np.bool_]) -> int | None:
    places = np.flatnonzero(wrong)
    return int(places[0]) if places.size else None


def _fail(trace: Trace, field: str, found: object, expected: str) -> NoReturn:
    raise ValidationError(
        f"trace {trace.header.trace_id!r}, {field}: found {found}, expected {expected}. "
        "The run was cancelled; report it with the worker's log."
    )
