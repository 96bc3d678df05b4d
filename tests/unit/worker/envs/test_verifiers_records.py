"""Messages, calls and arrays of verifiers as ours, in the shapes of both versions."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from env_worker.domain import Episode, Message, Node, SamplingParams, ToolCall, WeightVersionSpan
from env_worker.envs.verifiers import arrays, endpoint, messages
from env_worker.envs.verifiers.settings import VerifiersSettings
from env_worker.model.dialects.base import EngineOptions
from env_worker.model.engine import Engine
from tests.helpers.fake_verifiers import FakeNode, Said, assistant, call, error, sampled_node, user


def test_messages_lose_nothing() -> None:
    parts = [
        Said(type="text", text="look \U0001f914"),
        Said(type="image_url", image_url={"url": "data:image/png;base64,AA=="}),
    ]
    found = messages.message(Said(role="user", content=parts))
    assert found.to_openai()["content"] == [part.model_dump() for part in parts]
    broken = '{"a": 1,,'
    calls = [
        SimpleNamespace(id="c1", type="function", name="add", namespace=None, arguments=broken),
        SimpleNamespace(id="c2", type="custom", name="run", namespace="box", arguments="free text"),
    ]
    said = Said(
        role="assistant", content=None, reasoning_content="why", tool_calls=calls, provider_state=[{"x": 1}]
    )
    found = messages.message(said)
    assert found.tool_calls == (ToolCall("c1", "add", broken), ToolCall("c2", "run", "free text"))
    assert (found.content, found.reasoning) == ("", "why")
    assert json.loads(found.extra_json) == {
        "provider_state": [{"x": 1}],
        "tool_call_kinds": [{"index": 1, "type": "custom", "namespace": "box"}],
    }
    found = messages.message(Said(role="tool", content="5", tool_call_id="c1", name="add"))
    assert found == Message.tool("5", "c1", name="add")
    assert messages.message(user("half an emoji \ud83e")).text == "half an emoji ?"


def test_tools_are_openais() -> None:
    tool = Said(type="function", name="add", description="adds\ud83e", parameters={}, strict=None)
    assert json.loads(messages.tools_json([tool, Said(type="custom", name="run")])) == [
        {"type": "function", "function": {"name": "add", "description": "adds?", "parameters": {}}},
        {"type": "custom", "name": "run"},
    ]
    assert messages.tools_json([]) == ""


@pytest.mark.parametrize(
    ("kind", "path", "url", "dialect"),
    [
        ("eval", "/chat/completions", "http://engine:8000/v1/chat/completions", "openai-chat"),
        ("eval", "/messages", "http://engine:8000/v1/messages", "anthropic-messages"),
        ("eval", "/responses", "http://engine:8000/v1/responses", "openai-responses"),
        ("eval", None, "http://engine:8000/v1", ""),
        ("train", "/chat/completions", "http://engine:8000/inference/v1/generate", "vllm-generate"),
    ],
)
def test_calls_say_where_they_went(kind: str, path: str | None, url: str, dialect: str) -> None:
    theirs = call(0)
    theirs.endpoint = path
    client = SimpleNamespace(type=kind, base_url="http://engine:8000/v1")
    spans = (WeightVersionSpan("v7", 0, 3),)
    found = messages.call(theirs, client=client, attempt=2, weight_versions=spans)
    assert (found.endpoint, found.dialect, found.attempt) == (url, dialect, 2)
    assert (found.started_at, found.duration_seconds) == (1000.0, 2.0)
    assert found.weight_versions == spans


def test_a_failed_call_is_the_models() -> None:
    found = messages.call(call(None, error("slow down", "Whatever", 429)), client=None, attempt=1)
    assert found.error is not None
    assert (found.error.phase, found.error.message, found.node) == ("model", "slow down (status 429)", None)


@pytest.mark.parametrize("kind", ["MalformedGenerateResponseError", "ValidationError", "KeyError"])
def test_what_its_client_cannot_make_of_an_answer_is_the_models(kind: str) -> None:
    found = messages.call(call(None, error("no", kind)), client=None, attempt=1)
    assert found.error is not None
    assert (found.error.type, found.error.message, found.error.phase) == (kind, "no", "model")


@pytest.mark.parametrize(
    ("kind", "phase"),
    [("TaskError", "environment"), ("ToolsetError", "tool"), ("CancelledError", "environment")],
)
def test_a_hook_that_fails_in_a_call_is_not_the_models(kind: str, phase: str) -> None:
    found = messages.call(call(None, error("no", kind)), client=None, attempt=1)
    assert found.error is not None
    assert found.error.phase == phase


def test_counts_that_are_none_are_not_told() -> None:
    theirs = call(0)
    theirs.usage = SimpleNamespace(input_tokens=-1, completion_tokens=10**30, cached_input_tokens=-5)
    found = messages.call(theirs, client=None, attempt=1)
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (0, 0, None)


def node_of(theirs: Any) -> Node:
    trace = Episode("e" * 32, "env", {}).new_trace()
    streams = arrays.streams(theirs)
    trace.add_node(
        Message.assistant(), streams.token_ids, sampled=theirs.sampled, mask=streams.mask,
        is_content=streams.is_content, logprobs=streams.logprobs,
    )  # fmt: skip
    return trace.nodes[0]


@pytest.mark.parametrize("lists", [True, False], ids=["0.4.0", "0.4.1"])
def test_streams_of_both_versions(lists: bool) -> None:
    theirs = sampled_node(None)
    theirs.is_content = np.array([False, True, True, False])
    if lists:
        for name in ("token_ids", "mask", "is_content", "logprobs"):
            setattr(theirs, name, getattr(theirs, name).tolist())
    ours = node_of(theirs)
    assert ours.token_ids.tolist() == [0, 1, 2, 3]
    assert ours.mask.tolist() == [False, True, True, True]
    assert ours.is_content.tolist() == [False, True, True, False]
    assert ours.logprobs.tolist() == [-0.5] * 3
    assert len(node_of(FakeNode(user("text only"))).token_ids) == 0


def test_streams_that_do_not_fit_are_left_out_with_a_reason() -> None:
    theirs = sampled_node(None)
    theirs.logprobs, theirs.is_content = theirs.logprobs[:1], np.zeros(9, np.bool_)
    found = arrays.streams(theirs)
    assert (len(found.token_ids), len(found.logprobs), len(found.is_content)) == (4, 0, 0)
    assert found.holes == {
        "is_content": "verifiers gave 9 flags for 4 tokens",
        "logprobs": "verifiers gave 1 log-probabilities for 3 tokens",
    }
    theirs = sampled_node(None)
    theirs.mask = theirs.mask[1:]
    found = arrays.streams(theirs)
    assert (len(found.token_ids), len(found.mask), list(found.holes)) == (0, 0, ["token_ids"])
    theirs = sampled_node(None)
    theirs.sampled = False
    assert list(arrays.streams(theirs).holes) == ["token_ids"]


def test_arrays_are_taken_over_and_what_is_missing_in_a_head_is_left_out() -> None:
    theirs = sampled_node(None)
    theirs.sampling_mask = SimpleNamespace(ids=np.arange(4, dtype=np.int32), counts=np.array([2, 0, 2]))
    assert arrays.set_sampled_arrays(ours := node_of(theirs), theirs) == {}
    assert ours.sampling_mask is not None
    assert ours.sampling_mask.counts.tolist() == [2, 0, 2]
    assert ours.top_logprobs is None, "0.4.0 has none"
    theirs.top_logprobs = SimpleNamespace(  # type: ignore[attr-defined]
        ids=np.arange(6, dtype=np.int32),
        logprobs=np.array([-0.1, -9999.0, -9999.0, -0.2, -0.3, -9999.0], np.float32),
        counts=np.array([2, 1, 3]),
    )
    assert arrays.set_sampled_arrays(ours, theirs) == {}
    assert ours.top_logprobs is not None
    assert ours.top_logprobs.ids.tolist() == [3, 4], "what is second may stand for no sampled token"
    assert ours.top_logprobs.counts.tolist() == [0, 0, 2]
    rows = np.ones((4, 2, 2), np.uint8)
    assert arrays.set_routing(ours, rows, EngineOptions()) == ""
    assert ours.routed_experts is not None
    assert np.shares_memory(ours.routed_experts, rows), "copied"
    theirs.sampling_mask.counts = np.array([4])
    theirs.top_logprobs.counts = np.array([6])  # type: ignore[attr-defined]
    assert set(arrays.set_sampled_arrays(ours, theirs)) == {"sampling_mask", "top_logprobs"}
    assert "expected (4, layers, top_k)" in arrays.set_routing(ours, rows[1:], EngineOptions())
    assert arrays.set_routing(ours, None, EngineOptions()) == ""
    assert ours.routed_experts is None


def test_what_the_client_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-0123456789")
    engine = Engine("http://engine:8000/v1", "m", headers={"x-lane": "1"}, key_variable="SOME_API_KEY")
    train = VerifiersSettings("n", "f", {}, {"type": "train", "renderer": {"name": "qwen3"}})
    assert endpoint.client_config(engine, train) == {
        "type": "train",
        "renderer": {"name": "qwen3"},
        "base_url": "http://engine:8000/v1",
        "api_key_var": "SOME_API_KEY",
        "headers": {"x-lane": "1"},
    }
    plain = VerifiersSettings("n", "f", {})
    config = endpoint.client_config(Engine("http://engine:8000/v1", "m"), plain)
    assert config["api_key_var"] == endpoint.NO_KEY, "else verifiers takes that of its makers"
    sampling = SamplingParams(temperature=0.5, logprobs=2, stop=("x",), extra={"cache_salt": "s"})
    told = {"temperature": 0.5, "stop": ["x"], "cache_salt": "s"}
    assert endpoint.sampling_config(sampling, plain) == told
    assert endpoint.sampling_config(sampling, train) == {**told, "logprobs": 2}
    assert assistant(None).content is None


def test_a_key_with_white_space_around_it_is_read_from_a_variable_of_our_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """verifiers sends what it reads, and what HTTP refuses stands in its error, key and all."""
    monkeypatch.setenv("ENVTRIO_API_KEY_SOME_TOKEN", "")
    monkeypatch.setenv("SOME_TOKEN", " sk-0123456789\n")
    engine = Engine("http://engine:8000/v1", "m", key_variable="SOME_TOKEN")
    assert endpoint.key_variable(engine) == "ENVTRIO_API_KEY_SOME_TOKEN"
    assert os.environ["ENVTRIO_API_KEY_SOME_TOKEN"] == "sk-0123456789"
    assert endpoint.key_variables(engine) == ("SOME_TOKEN", "ENVTRIO_API_KEY_SOME_TOKEN")
    monkeypatch.setenv("SOME_TOKEN", "sk-of-tomorrow")
    assert endpoint.key_variable(engine) == "SOME_TOKEN"
    monkeypatch.delenv("SOME_TOKEN")
    with pytest.raises(LookupError, match="SOME_TOKEN"):
        endpoint.key_variable(engine)
    assert endpoint.key_variables(Engine("http://engine:8000/v1", "m")) == ()
