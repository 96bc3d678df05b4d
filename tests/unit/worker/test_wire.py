"""Field by field between the domain and protobuf."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from envtrio.v1 import delta_pb2, env_service_pb2, episode_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from env_worker import wire
from env_worker.domain import (
    ROLES,
    Call,
    Episode,
    EpisodeError,
    ImagePart,
    InvalidTaskError,
    JsonPart,
    Link,
    Message,
    Node,
    Pending,
    Reward,
    SamplingMask,
    SamplingParams,
    TextPart,
    ToolCall,
    TopLogprobs,
    WeightVersionSpan,
)
from env_worker.strict_json import InvalidFieldError


def test_streams_are_little_endian_bytes_of_the_documented_dtypes() -> None:
    node = wire.node(
        Node(
            Message.assistant("hi"),
            [1, 258, -1],
            parent=0,
            sampled=True,
            mask=[False, True, True],
            is_content=[True, False, True],
            logprobs=[-0.5, -2.0],
            created_at=1_700_000_000.5,
            tools_json="[]",
        )
    )
    assert node.token_ids == bytes([1, 0, 0, 0, 2, 1, 0, 0, 255, 255, 255, 255])
    assert node.mask == bytes([0, 1, 1])
    assert node.is_content == bytes([1, 0, 1])
    assert np.frombuffer(node.logprobs, "<f4").tolist() == [-0.5, -2.0]
    assert node.HasField("parent")
    assert node.parent == 0
    assert node.sampled
    assert node.created_unix_nanos == 1_700_000_000_500_000_000
    assert node.tools_json == "[]"


def test_a_root_has_no_parent_and_an_empty_node_empty_streams() -> None:
    node = wire.node(Node(Message.user("")))
    assert not node.HasField("parent")
    assert (node.token_ids, node.mask, node.is_content, node.logprobs) == (b"", b"", b"", b"")


def test_training_arrays_leave_no_byte() -> None:
    bare = Node(Message.user("x"), [1, 2], sampled=True, logprobs=[-1, -2], created_at=1.0)
    full = Node(
        Message.user("x"),
        [1, 2],
        sampled=True,
        logprobs=[-1, -2],
        created_at=1.0,
        routed_experts=np.ones((2, 48, 8), np.uint8),
        sampling_mask=SamplingMask(np.array([1, 2]), np.array([1, 1])),
        top_logprobs=TopLogprobs(np.array([1]), np.array([-1.0]), np.array([1, 0])),
    )
    assert wire.node(full) == wire.node(bare)


def test_every_role_has_its_number() -> None:
    assert [wire.message(Message(role)).role for role in ROLES] == [
        episode_pb2.ROLE_SYSTEM,
        episode_pb2.ROLE_DEVELOPER,
        episode_pb2.ROLE_USER,
        episode_pb2.ROLE_ASSISTANT,
        episode_pb2.ROLE_TOOL,
    ]


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("", []),
        ("text", [{"text": "text"}]),
        ((), []),
        ((TextPart(""),), [{"text": ""}]),
        (
            (TextPart("a"), ImagePart("data:x"), JsonPart('{"type":"file"}')),
            [{"text": "a"}, {"image_url": "data:x"}, {"json": '{"type":"file"}'}],
        ),
    ],
)
def test_content_becomes_parts(content: Any, parts: list[dict[str, str]]) -> None:
    message = wire.message(Message("user", content))
    assert list(message.content) == [episode_pb2.ContentPart(**part) for part in parts]


def test_a_message_keeps_its_other_fields() -> None:
    source = Message(
        "tool", "x", "thought", (ToolCall("id", "search", "{broken"),), "call-1", "bob", '{"a":1}'
    )
    assert wire.message(source) == episode_pb2.Message(
        role=episode_pb2.ROLE_TOOL,
        content=[episode_pb2.ContentPart(text="x")],
        reasoning="thought",
        tool_calls=[episode_pb2.ToolCall(id="id", name="search", arguments="{broken")],
        tool_call_id="call-1",
        name="bob",
        extra_json='{"a":1}',
    )


def test_a_call_keeps_its_fields() -> None:
    error = EpisodeError("Timeout", "late", "turn 3", "Traceback", 1.5)
    source = Call(
        0, "m", "http://e/v1", "vllm-chat", 10.25, 1.5, 7, 0, 5, "stop", error, 3, True,
        (WeightVersionSpan("v1", 0, 4),),
    )  # fmt: skip
    assert wire.call(source) == episode_pb2.Call(
        node=0,
        model="m",
        simulated=True,
        endpoint="http://e/v1",
        started_at=Timestamp(seconds=10, nanos=250_000_000),
        duration=Duration(seconds=1, nanos=500_000_000),
        prompt_tokens=7,
        completion_tokens=0,
        cached_tokens=5,
        finish_reason="stop",
        error=wire.error(error),
        attempt=3,
        weight_versions=[episode_pb2.WeightVersionSpan(version="v1", start=0, end=4)],
        dialect="vllm-chat",
    )


def test_a_failed_call_has_no_node_and_no_counts() -> None:
    call = wire.call(Call())
    assert not call.HasField("node")
    assert not call.HasField("prompt_tokens")
    assert not call.HasField("completion_tokens")
    assert not call.HasField("cached_tokens")
    assert not call.HasField("error")
    assert call.attempt == 1


def test_the_small_records_keep_their_fields() -> None:
    assert wire.link(Link(1, 0, "returned", "trace-2")) == episode_pb2.Link(
        source=1, target=0, kind="returned", target_trace_id="trace-2"
    )
    assert wire.error(EpisodeError("E", "m", "p", "t", 2.0)) == episode_pb2.EpisodeError(
        type="E", message="m", phase="p", traceback="t", occurred_unix_nanos=2_000_000_000
    )
    assert wire.reward(Reward(0.0, 0.5)) == episode_pb2.Reward(value=0.0, weight=0.5)
    assert not wire.reward(Reward(None)).HasField("value")
    assert wire.reward(Reward(0.0)).HasField("value")


def test_a_preview_has_its_parent_and_none_is_empty() -> None:
    preview = wire.pending(Pending((Message.user("x"),), 0))
    assert preview.HasField("parent")
    assert [message.role for message in preview.messages] == [episode_pb2.ROLE_USER]
    assert wire.pending(None) == delta_pb2.Pending()


def test_the_header_and_the_head_keep_their_fields() -> None:
    episode = Episode("e" * 32, "env", {"a": 1}, group_id="g")
    trace = episode.new_trace("judge", trainable=False, model="m")
    trace.started_at = 5.5
    assert wire.header(trace) == episode_pb2.TraceHeader(
        trace_id="trace-0", agent="judge", model="m", started_at=Timestamp(seconds=5, nanos=500_000_000)
    )
    episode.started_at = 4.0
    error = EpisodeError("E", "m", occurred_at=1.0)
    episode.add_error(error)
    head = wire.head(episode, task_json='{ "a": 1 }', worker_instance="w", duration_seconds=0.25)
    assert head == episode_pb2.EpisodeHead(
        episode_id="e" * 32,
        environment="env",
        task_json='{ "a": 1 }',
        ok=False,
        errors=[wire.error(error)],
        started_at=Timestamp(seconds=4),
        duration=Duration(nanos=250_000_000),
        group_id="g",
        worker_instance="w",
    )


def test_absent_sampling_parameters_stay_absent() -> None:
    assert wire.sampling_params(env_service_pb2.SamplingParams()) == SamplingParams()


def test_sampling_parameters_keep_their_values() -> None:
    source = env_service_pb2.SamplingParams(
        temperature=0.0,
        top_p=0.5,
        top_k=-1,
        min_p=0.0,
        max_tokens=7,
        stop=["a", "b"],
        seed=-3,
        top_logprobs_count=4,
        presence_penalty=-2,
        frequency_penalty=2,
        repetition_penalty=1.1,
        extra_json={"best_of": "3", "nested": '{"a":[1.5]}'},
    )
    assert wire.sampling_params(source) == SamplingParams(
        temperature=0.0,
        top_p=0.5,
        top_k=-1,
        min_p=0.0,
        max_tokens=7,
        stop=("a", "b"),
        seed=-3,
        logprobs=4,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        repetition_penalty=1.1,
        extra={"best_of": 3, "nested": {"a": [1.5]}},
    )


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"temperature": -0.1}, "sampling.temperature", "is -0.1, expected 0 or more"),
        ({"temperature": float("nan")}, "sampling.temperature", "is nan"),
        ({"temperature": float("inf")}, "sampling", "temperature is inf, expected a finite number"),
        ({"top_p": 0.0}, "sampling.top_p", "is 0.0, expected more than 0, at most 1"),
        ({"top_k": 0}, "sampling.top_k", "expected -1 (off) or at least 1"),
        ({"min_p": 1.5}, "sampling.min_p", "expected 0 to 1"),
        ({"max_tokens": 0}, "sampling.max_tokens", "is 0, expected at least 1"),
        ({"max_tokens": 2**32 - 1}, "sampling", "max_tokens is 4294967295"),
        ({"presence_penalty": 2.1}, "sampling.presence_penalty", "expected -2 to 2"),
        ({"frequency_penalty": -2.1}, "sampling.frequency_penalty", "expected -2 to 2"),
        ({"repetition_penalty": 0.0}, "sampling.repetition_penalty", "expected more than 0"),
        ({"extra_json": {"k": "{"}}, "sampling.extra_json['k']", "is not strict JSON"),
        ({"extra_json": {"temperature": "1"}}, "sampling", "typed parameter: set temperature"),
    ],
)
def test_sampling_parameters_out_of_range_are_named(fields: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(InvalidFieldError) as raised:
        wire.sampling_params(env_service_pb2.SamplingParams(**fields))
    assert raised.value.field == field
    assert text in str(raised.value)


def test_a_task_is_an_object() -> None:
    assert wire.parse_task(' {"a": [1, 2.5, null]} ') == {"a": [1, 2.5, None]}


@pytest.mark.parametrize("text", ["", "[]", '"text"', "null", "{} {}", '{"a":NaN}'])
def test_a_task_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidTaskError, match="task_json"):
        wire.parse_task(text)
