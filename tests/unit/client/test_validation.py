"""check_episode: what a whole episode must satisfy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from envtrio.v1.episode_pb2 import Call, Episode, Trace

from env_client import EpisodeAssembly, ValidationError, check_episode
from tests.helpers.deltas import episode_stream

if TYPE_CHECKING:
    from collections.abc import Callable


def whole() -> Episode:
    """One trace: a prompt of 2 tokens and two answers of 3."""
    assembly = EpisodeAssembly()
    for message in episode_stream(2):
        assembly.apply(message)
    return assembly.finish()


def test_a_good_episode_passes() -> None:
    episode = whole()
    trace = episode.traces[0]
    trace.tools_json = "[]"
    trace.nodes[0].tools_json = '[{"type": "function"}]'
    trace.links.add(source=0, target=2, kind="return")
    trace.links.add(source=0, target=1, target_trace_id="t")
    trace.nodes.add(parent=0)  # A node without tokens, on another branch.
    trace.nodes.add(token_ids=bytes(8), mask=b"\0\1", logprobs=bytes(4))  # Another root, half of it sampled.
    trace.calls.add(finish_reason="length")  # A call whose answer was not used.
    trace.metrics["m"] = 0.5
    trace.rewards["not judged"].weight = 1
    check_episode(episode)


def test_empty_episodes_and_traces_pass() -> None:
    check_episode(Episode())
    check_episode(Episode(traces=[Trace()]))
    check_episode(Episode(traces=[Trace(calls=[Call()])]))  # The first call failed.


def test_optional_streams_may_be_absent() -> None:
    episode = whole()
    episode.traces[0].nodes[1].is_content = b""
    episode.traces[0].nodes[1].logprobs = b""
    check_episode(episode)


CHANGES: list[tuple[str, Callable[[Trace], object], str, str]] = [
    ("parent itself", lambda t: setattr(t.nodes[1], "parent", 1), "nodes[1].parent", "found 1"),
    ("parent later", lambda t: setattr(t.nodes[1], "parent", 2), "nodes[1].parent", "an earlier node than 1"),
    ("first with parent", lambda t: setattr(t.nodes[0], "parent", 0), "nodes[0].parent", "found 0"),
    ("ids", lambda t: setattr(t.nodes[1], "token_ids", b"\0" * 5), "nodes[1].token_ids", "found 5 bytes"),
    ("mask", lambda t: setattr(t.nodes[2], "mask", b"\1"), "nodes[2].mask", "1 bytes, expected 3 bytes."),
    ("no mask", lambda t: setattr(t.nodes[2], "mask", b""), "nodes[2].mask", "found 0 bytes"),
    ("mask value", lambda t: setattr(t.nodes[1], "mask", b"\1\2\1"), "nodes[1].mask[1]", "expected 0 or 1"),
    ("content", lambda t: setattr(t.nodes[1], "is_content", b"\1"), "nodes[1].is_content", "3 bytes or none"),
    ("content value", lambda t: setattr(t.nodes[2], "is_content", b"\1\1\xff"), "is_content[2]", "found 255"),
    (
        "logprobs",
        lambda t: setattr(t.nodes[1], "logprobs", b"\0" * 8),
        "nodes[1].logprobs",
        "expected 12 bytes",
    ),
    ("call", lambda t: setattr(t.calls[1], "node", 3), "calls[1].node", "found 3, expected a node below 3"),
    ("source", lambda t: t.links.add(source=3), "links[0].source", "found 3"),
    ("target", lambda t: t.links.add(target=3), "links[0].target", "found 3, expected a node below 3 of 't'"),
    ("foreign", lambda t: t.links.add(target_trace_id="x"), "links[0].target_trace_id", "found 'x'"),
    ("info", lambda t: t.info_json.update({"k": "{"}), "info_json['k']", "JSON text"),
    ("info nan", lambda t: t.info_json.update({"k": "NaN"}), "info_json['k']", "NaN is no JSON"),
    ("info deep", lambda t: t.info_json.update({"k": "[" * 100_000}), "info_json['k']", "JSON text"),
    ("tools", lambda t: setattr(t, "tools_json", "{}"), "tools_json", "found a JSON dict"),
    ("no tools", lambda t: setattr(t, "tools_json", ""), "tools_json", "JSON text"),
    ("node tools", lambda t: setattr(t.nodes[0], "tools_json", "1"), "nodes[0].tools_json", "a JSON int"),
    ("reward", lambda t: setattr(t.rewards["r"], "value", math.nan), "rewards['r']", "value nan"),
    ("weight", lambda t: setattr(t.rewards["r"], "weight", math.inf), "rewards['r']", "weight inf"),
    ("metric", lambda t: t.metrics.update({"m": -math.inf}), "metrics['m']", "found -inf"),
]


@pytest.mark.parametrize(
    ("change", "field", "found"), [line[1:] for line in CHANGES], ids=[line[0] for line in CHANGES]
)
def test_contradictions(change: Callable[[Trace], object], field: str, found: str) -> None:
    episode = whole()
    change(episode.traces[0])
    with pytest.raises(ValidationError) as caught:
        check_episode(episode)
    assert f"trace 't', {field}" in str(caught.value) or f".{field}" in str(caught.value)
    assert found in str(caught.value)
