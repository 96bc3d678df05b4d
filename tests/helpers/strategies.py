"""Hypothesis strategies: random episodes as programs of operations, with a reader that looks in between."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from env_worker.domain import (
    Episode,
    EpisodeError,
    ImagePart,
    JsonPart,
    JsonValue,
    Message,
    TextPart,
    ToolCall,
    WeightVersionSpan,
)
from tests.helpers.operations import (
    AddCall,
    AddLink,
    AddNode,
    Conclude,
    FailEpisode,
    Flush,
    NewTrace,
    Operation,
    Preview,
    Report,
    Retry,
    Set,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


_numbers = st.integers(0, 7)
_texts = st.text(max_size=12) | st.sampled_from(["", "日本語 🎉", "x" * 300, "\x00"])
_names = st.sampled_from(["", "a", "b", "ключ"])
_finite = st.floats(allow_nan=False, allow_infinity=False)
_factors = st.floats(-1e154, 1e154)  # their product is finite too
json_values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | _finite | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=5,
)
"""JSON values."""

_parts = (
    _texts.map(TextPart)
    | _texts.map(ImagePart)
    | _texts.map(lambda text: JsonPart(json.dumps({"type": "file", "file": text})))
)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
    content=_texts | st.lists(_parts, max_size=3).map(tuple),
    reasoning=_texts,
    tool_calls=st.lists(st.builds(ToolCall, _texts, _texts, _texts), max_size=2).map(tuple),
    tool_call_id=_texts,
    name=_texts,
    extra_json=st.sampled_from(["", '{"refusal":"no"}']),
)
"""Chat messages, empty ones included."""

errors = st.builds(
    EpisodeError, type=_texts, message=_texts, phase=_texts, traceback=_texts, occurred_at=st.floats(0, 2e9)
)
"""Errors of a trace, a call or an episode."""

_spans = st.builds(WeightVersionSpan, _texts, st.just(0), st.integers(0, 2**40))

flushes = st.builds(
    Flush, budget_bytes=st.integers(0, 400) | st.sampled_from([5_000, 1024 * 1024]), write_ends=st.booleans()
)
"""Looks of a reader, with budgets from nothing to plenty."""

operations: st.SearchStrategy[Operation] = st.one_of(
    flushes,
    st.builds(
        AddNode,
        trace=_numbers,
        parent=st.none() | _numbers,
        message=messages,
        token_ids=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6).map(tuple),
        sampled=st.booleans(),
        mask_seed=st.integers(0, 1000),
        with_content=st.booleans(),
        with_arrays=st.booleans(),
        tools_json=st.sampled_from(["", '[{"type":"function"}]']),
    ),
    st.builds(NewTrace, agent=_texts, trainable=st.booleans(), model=_texts),
    st.builds(Retry, trace=_numbers),
    st.builds(FailEpisode, error=errors),
    st.builds(
        AddCall,
        trace=_numbers,
        node=st.none() | _numbers,
        model=_texts,
        counts=st.tuples(st.integers(0, 9), st.integers(0, 9), st.none() | st.integers(0, 9)),
        error=st.none() | errors,
        attempt=st.integers(1, 3),
        simulated=st.booleans(),
        versions=st.lists(_spans, max_size=2).map(tuple),
    ),
    st.builds(
        AddLink,
        trace=_numbers,
        source=_numbers,
        target=_numbers,
        kind=_texts,
        other_trace=st.sampled_from(["", "trace-0", "trace-9"]),
    ),
    st.builds(
        Preview,
        trace=_numbers,
        messages=st.lists(messages, max_size=2).map(tuple),
        parent=st.none() | _numbers,
    ),
    st.builds(Set, trace=_numbers, what=st.just("info"), name=_names, value=json_values, weight=st.just(1.0)),
    st.builds(
        Set,
        trace=_numbers,
        what=st.sampled_from(["reward", "metric"]),
        name=_names,
        value=st.none() | _factors,
        weight=_factors,
    ),
    st.builds(Report, trace=_numbers, errors=st.lists(errors, max_size=2).map(tuple), rewrite=st.booleans()),
    st.builds(
        Conclude,
        trace=_numbers,
        what=st.sampled_from(["ok", "stop", "tools", "finish"]),
        text=_texts,
        ok=st.booleans(),
    ),
)
"""Any operation."""

_openings: st.SearchStrategy[Operation] = st.builds(
    NewTrace, agent=_texts, trainable=st.booleans(), model=_texts
)

programs: st.SearchStrategy[Sequence[Operation]] = st.builds(
    lambda opening, rest: [opening, *rest], _openings, st.lists(operations, max_size=40)
)
"""Programs that begin by opening a trace."""


def new_episode() -> Episode:
    """An empty episode to run a program on."""
    return Episode("0" * 32, "random", {}, request_id="1" * 32, group_id="group")
