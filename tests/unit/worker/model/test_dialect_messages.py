"""Messages of engines cross and come back equal; a response without one is malformed, in words."""

from __future__ import annotations

from typing import Any

import pytest

from env_worker.domain import Message, TextPart, ToolCall
from env_worker.model.dialects import DIALECTS
from env_worker.model.errors import MalformedAnswerError
from tests.unit.worker.model.responses import (
    ALL,
    PROMPT,
    SAMPLING_PATH,
    Engine,
    ask,
    derendered,
    question,
    sglang_chat,
    vllm_chat,
    vllm_generate,
)

NAMES = list(SAMPLING_PATH)

MESSAGES: list[dict[str, Any]] = [
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": None},
    {"role": None, "content": "x"},
    {"content": "emoji 🙂 half \ud83d"},
    {"role": "assistant", "content": "x", "reasoning_content": "why"},
    {"role": "assistant", "content": "x", "refusal": None, "annotations": None, "own": {"deep": [1, None]}},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"broken": '}},
            {"id": "2", "type": "function", "function": {"name": "g", "arguments": ""}},
        ],
    },
    {"role": "assistant", "content": [{"type": "text", "text": "part"}, {"type": "audio", "audio": {}}]},
]


@pytest.mark.parametrize("name", ["openai-chat", "vllm-chat", "vllm-generate", "sglang-chat"])
@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("finish", ["stop", "length", "tool_calls"])
async def test_messages_arrive_equal(name: str, message: dict[str, Any], finish: str) -> None:
    if name == "vllm-generate":
        parsed = derendered()
        parsed["choices"][0] |= {"message": message, "finish_reason": finish}
        told = {
            "chat/completions/render": {"token_ids": PROMPT},
            "/inference/v1/generate": vllm_generate(),
            "chat/completions/derender": parsed,
        }
        answer = await DIALECTS[name].ask(question(), ALL, Engine(told).post)
    else:
        made = sglang_chat() if name == "sglang-chat" else vllm_chat()
        made["choices"][0] |= {"message": message, "finish_reason": finish}
        answer = await ask(name, made)
    assert answer.message == Message.from_openai({**message, "role": "assistant"})
    assert Message.from_openai(answer.message.to_openai()) == answer.message
    assert answer.finish_reason == finish


def test_the_messages_above_are_what_they_say() -> None:
    broken = Message.from_openai(MESSAGES[6])
    assert broken.tool_calls == (ToolCall("1", "f", '{"broken": '), ToolCall("2", "g", ""))
    assert Message.from_openai({**MESSAGES[3], "role": "assistant"}).text == "emoji 🙂 half ?"
    assert Message.from_openai(MESSAGES[7]).content[0] == TextPart("part")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ({}, "an empty object"),
        ({"choices": []}, "the keys choices"),
        ({"choices": None, "error": {"message": "out of memory"}}, "it says: out of memory"),
        ({"error": "queue full"}, "it says: queue full"),
        ({"choices": [None]}, "the keys choices"),
        ({"choices": {"0": {}}}, "the keys choices"),
    ],
)
async def test_a_response_without_a_choice_is_malformed(
    name: str, response: dict[str, Any], reason: str
) -> None:
    with pytest.raises(MalformedAnswerError, match=reason):
        await ask(name, response)


@pytest.mark.parametrize("name", ["openai-chat", "vllm-chat", "sglang-chat"])
@pytest.mark.parametrize(
    "message",
    [
        None,
        "hi",
        [],
        {"role": "user", "content": "x"},
        {"role": ["assistant"]},
        {"content": 7},
        {"tool_calls": "f"},
        {"tool_calls": [{"type": "custom"}]},
    ],
)
async def test_a_choice_without_a_message_is_malformed(name: str, message: Any) -> None:
    made = sglang_chat() if name == "sglang-chat" else vllm_chat()
    made["choices"][0]["message"] = message
    with pytest.raises(MalformedAnswerError, match="message of the engine's response"):
        await ask(name, made)


@pytest.mark.parametrize("depth", [0, 700, 100_000])
async def test_a_good_answer_is_not_lost_for_what_stands_beside_it(
    depth: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Which nests deeper than it could be written again, or (with no depth) is no number of JSON."""
    odd: Any = float("nan")
    for _ in range(depth):
        odd = [odd]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}
    message = {"role": "assistant", "content": "PROMPT", "reasoning": "why", "tool_calls": [call], "odd": odd}
    answer = await ask("vllm-chat", vllm_chat(message=message))
    assert answer.message == Message.assistant(
        "PROMPT", reasoning="why", tool_calls=[ToolCall("1", "f", "{")]
    )
    assert "keys that cannot be carried" in caplog.text
    assert "PROMPT" not in caplog.text


async def test_words_of_any_length_are_cut_before_they_are_looked_at() -> None:
    long = "é\ud83d" * 100_000
    answer = await ask("openai-chat", {**vllm_chat(finish_reason=long), "model": long})
    assert (len(answer.model), len(answer.finish_reason)) == (256, 256)
    for error in (long, {"message": long}):
        with pytest.raises(MalformedAnswerError) as raised:
            await ask("openai-chat", {"error": error})
        assert len(str(raised.value)) < 70_000


async def test_more_spans_of_weights_than_a_call_may_have_are_a_hole() -> None:
    spans = [{"version": "v", "start": at, "end": at + 1} for at in range(4097)]
    answer = await ask("vllm-chat", vllm_chat(weight_versions=spans))
    assert answer.holes["weight_versions"] == "weight_versions has 4097 spans, the limit is 4096"
