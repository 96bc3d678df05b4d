"""Messages: nothing of OpenAI's format is lost, and nothing that UTF-8 cannot carry gets in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_worker.domain import ROLES, ImagePart, JsonPart, Message, TextPart, ToolCall

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
parts = st.one_of(
    st.builds(TextPart, texts),
    st.builds(ImagePart, texts),
    st.builds(
        lambda text: JsonPart(json.dumps({"type": "file", "file": text}, separators=(",", ":"))), st.just("f")
    ),
)
calls = st.builds(ToolCall, texts, texts, texts)
messages = st.builds(
    Message,
    role=st.sampled_from(ROLES),
    content=texts | st.lists(parts, min_size=1, max_size=3).map(tuple),
    reasoning=texts,
    tool_calls=st.lists(calls, max_size=2).map(tuple),
    tool_call_id=texts,
    name=texts,
    extra_json=st.sampled_from(["", '{"refusal":"no"}']),
)


@given(messages)
def test_openai_round_trip(message: Message) -> None:
    wire = json.loads(json.dumps(message.to_openai()))
    assert Message.from_openai(wire) == message


def test_constructors_and_text() -> None:
    assert Message.system("s") == Message("system", "s")
    assert Message.user([TextPart("a"), ImagePart("data:,"), TextPart("b")]).text == "ab"
    assert Message.tool("4", "call-1", name="add").to_openai() == {
        "role": "tool", "content": "4", "tool_call_id": "call-1", "name": "add",
    }  # fmt: skip
    asked = Message.assistant(tool_calls=[ToolCall("1", "add", '{"a":')], reasoning="hm")
    assert asked.to_openai()["content"] is None
    assert asked.to_openai()["reasoning_content"] == "hm"
    assert hash(asked) == hash(Message.from_openai(asked.to_openai()))


def test_from_openai_keeps_what_it_does_not_know() -> None:
    wire: dict[str, Any] = {
        "role": "user",
        "content": [
            {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
            {"type": "image_url", "image_url": {"url": "http://x", "detail": "low"}},
            {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        ],
        "annotations": [1],
        "refusal": None,
    }
    message = Message.from_openai(wire)
    assert all(isinstance(part, JsonPart) for part in message.content)
    assert message.to_openai() == {key: value for key, value in wire.items() if key != "refusal"}


def test_from_openai_mends_what_models_break() -> None:
    message = Message.from_openai(
        {
            "role": "assistant",
            "content": None,
            "reasoning": "\ud83d",
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
            "x": ["\ud83d"],
        }
    )
    assert message == Message(
        "assistant", reasoning="?", tool_calls=(ToolCall("", "f", '{"a":1}'),), extra_json='{"x":["?"]}'
    )


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        ({"role": "robot", "content": ""}, "role is 'robot'"),
        ({"content": ""}, "role is ''"),
        ({"role": "user", "content": 3}, "content is a int"),
        ({"role": "user", "content": ["a"]}, "content is a list"),
        ({"role": "assistant", "tool_calls": [{"type": "custom"}]}, "'custom'"),
    ],
)
def test_from_openai_refuses(wire: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Message.from_openai(wire)


def test_texts_that_cannot_be_encoded_are_refused_with_the_next_step() -> None:
    for make in (Message.user, TextPart, ImagePart, lambda text: ToolCall("", "", text)):
        with pytest.raises(ValueError, match=r"lone surrogate.*replace"):
            make("ok \ud800")
    with pytest.raises(TypeError, match="NoneType, expected str"):
        Message.user("x", name=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="from_openai"):
        Message("user", ({"type": "text"},))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="extra_json holds a JSON list"):
        Message("user", extra_json="[]")
    with pytest.raises(ValueError, match="content part is not JSON text"):
        JsonPart("{")


def test_sequences_become_tuples() -> None:
    message = Message("user", [TextPart("a")], tool_calls=[])  # type: ignore[arg-type]
    assert (message.content, message.tool_calls) == ((TextPart("a"),), ())
