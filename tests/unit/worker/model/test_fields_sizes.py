"""What is too large for a message, or to go back to the engine, is an error of the model, in words."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from env_worker.delta.limits import MAX_MESSAGE_BYTES
from env_worker.delta.streamer import DeltaStreamer
from env_worker.domain import Episode, Message
from env_worker.model.attribution import place, write_turn
from env_worker.model.dialects import DIALECTS, reading
from env_worker.model.dialects.base import EngineOptions
from env_worker.model.errors import MalformedAnswerError
from env_worker.model.fields import sizes
from env_worker.model.fields.sizes import MAX_MESSAGE_VALUES, check_message, check_sent
from env_worker.model.json_pieces import LargeObject
from tests.unit.worker.model.responses import (
    ALL,
    PROMPT,
    SAMPLED,
    Engine,
    ask,
    derendered,
    engine,
    question,
    rendered,
    sglang_chat,
    vllm_chat,
    vllm_completions,
    vllm_generate,
)

CHATS = ["openai-chat", "vllm-chat", "vllm-generate", "sglang-chat"]
LONGEST_INT = 10**4299


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


async def answered(name: str, message: dict[str, Any]) -> Message:
    """What a dialect makes of a chat message."""
    if name == "vllm-generate":
        told = {
            "chat/completions/render": rendered(),
            "/inference/v1/generate": vllm_generate(),
            "chat/completions/derender": derendered(**message),
        }
        return (await DIALECTS[name].ask(question(), ALL, Engine(told).post)).message
    made = sglang_chat() if name == "sglang-chat" else vllm_chat()
    made["choices"][0]["message"] = {"role": "assistant", **message}
    return (await ask(name, made)).message


# Messages.

TOO_MANY: dict[str, dict[str, Any]] = {
    "numbers beside": {"content": "hi", "x": [1] * 400_000},
    "lists beside": {"content": "hi", "x": [[] for _ in range(400_000)]},
    "lists in lists beside": {"content": "hi", "x": [[[]] * 700 for _ in range(400)]},
    "keys": {str(key): None for key in range(200_000)},
    "keys beside": {"content": "hi", "x": {str(key): 0 for key in range(200_000)}},
    "arguments": {"tool_calls": [call({"x": [1] * 400_000})]},
    "calls": {"tool_calls": [call("")] * 60_000},
    "parts": {"content": [{"type": "text", "text": "a"}] * 100_000},
    "a list for reasoning": {"content": "hi", "reasoning_content": [1] * 400_000},
    "a list for the role": {"content": "hi", "role": [1] * 400_000},
    "long numbers": {"content": "hi", "x": [LONGEST_INT] * 400},
}


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("message", TOO_MANY.values(), ids=TOO_MANY)
async def test_a_message_of_too_many_values_is_refused_before_it_is_made(
    name: str, message: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*_: object) -> Message:
        raise AssertionError("it was made")

    monkeypatch.setattr(Message, "from_openai", made)
    with pytest.raises(
        MalformedAnswerError,
        match=r"message of the engine's response has \d{6,} values or more, the limit is 262144; lower",
    ):
        await answered(name, message)


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("text", ["a" * 2001, "é" * 1001, "🦜" * 501, "\ud83d" * 700])
async def test_a_message_of_too_much_text_is_refused(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "MAX_TURN_BYTES", 2000)
    for message in ({"content": text}, {"reasoning": text}, {"tool_calls": [call(text)]}, {"x": text}):
        with pytest.raises(MalformedAnswerError, match=r"has \d+ bytes of text or more, the limit is 2000; "):
            await answered(name, message)


@pytest.mark.parametrize(
    "message",
    [
        {"content": "hi", "x": {"deep": ["a" * 1001]}},
        {"content": "hi", "a" * 1001: 1},
        {"tool_calls": [call({"x": "a" * 1001})]},
        {"content": [{"type": "text", "text": "a" * 1001, "cache": 1}]},
        {"content": [{"type": "text", "text": ["a" * 1001]}]},
        {"content": [{"type": "audio", "audio": {"data": "a" * 1001}}]},
        {"content": [{"type": "audio", "audio": "a" * 600}, {"type": "audio", "audio": "a" * 600}]},
    ],
)
def test_what_is_written_as_json_again_has_a_limit_of_its_own(
    message: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "MAX_BESIDE_BYTES", 1000)
    with pytest.raises(MalformedAnswerError, match=r"beside its content, has .* the limit is 1000; "):
        check_message(message)
    monkeypatch.undo()
    check_message(message)


def test_what_honest_engines_say_is_within_the_limits() -> None:
    text = "a" * (12 << 20)
    check_message(
        {
            "role": "assistant",
            "content": [{"type": "text", "text": text}, {"type": "text", "text": text}],
            "reasoning": text,
            "tool_calls": [call('{"path": "x"}'), call({"path": "x"})] * 1000,
            "images": [{"type": "image_url", "image_url": {"url": "data:" + "a" * (8 << 20)}}] * 3,
            "annotations": [{"type": "url_citation", "url_citation": {"url": "x", "title": "y"}}] * 1000,
        }
    )
    check_message({"content": "é" * (31 << 20)})
    check_message({"content": "x", "x": [1] * (MAX_MESSAGE_VALUES - 5)})


async def test_a_text_completion_has_the_limit_of_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "MAX_TURN_BYTES", 2000)
    made = vllm_completions()
    made["choices"][0]["text"] = "é" * 1001
    with pytest.raises(MalformedAnswerError, match="the limit is 2000"):
        await ask("vllm-completions", made)


# Nodes.


@pytest.mark.parametrize("name", ["openai-chat", *CHATS[1:], "vllm-completions"])
async def test_an_answer_that_no_node_holds_is_an_error_of_the_model(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_TURN_BYTES", 50)
    with pytest.raises(MalformedAnswerError, match=r"makes a node of \d+ bytes .*, the limit is 50; lower"):
        await ask(name)


def test_what_is_within_the_limit_crosses_the_wire() -> None:
    tokens = (1 << 20, 1 << 10)
    for content in ("a" * 50, [{"type": "text", "text": "a" * 50}] * 80_000):
        episode = Episode("e", "t", {})
        streamer = DeltaStreamer(episode)
        trace = episode.new_trace()
        made = vllm_chat(token_ids=[1] * tokens[1], logprobs=None, routed_experts=None, weight_versions=None)
        made["prompt_token_ids"] = [1] * tokens[0]
        made["usage"] = {}
        choice = made["choices"][0]
        choice["message"] = {"content": content}
        answer = reading.begin(made, choice, Message.from_openai({"role": "assistant", "content": content}))
        reader = reading.AnswerReader(answer, frozenset())
        assert reader.token_ids((made, "prompt_token_ids"), (choice, "token_ids"), {})
        room = sizes.MAX_TURN_BYTES - reading.node_bytes(answer)
        object.__setattr__(answer.message, "reasoning", "é" * (room // 2))
        reading.check_node(answer)
        write_turn(trace, place(trace, None, [Message.user("hi")], answer.prompt_ids), answer)
        sent = 0
        while (data := streamer.next_message()) is not None:
            assert len(data) <= MAX_MESSAGE_BYTES
            sent += len(data)
            streamer.commit()
        assert sent > 0.9 * MAX_MESSAGE_BYTES


# What goes back.

UNSENDABLE: list[tuple[Any, str]] = [
    ("\ud83d", "lone surrogate"),
    (["a", {"\ud83d": 1}], "lone surrogate"),
    (float("nan"), "not JSON"),
    ({"x": [float("-inf")]}, "not JSON"),
]


@pytest.mark.parametrize(("value", "why"), UNSENDABLE)
@pytest.mark.parametrize("name", ["vllm-generate", "vllm-completions"])
async def test_what_render_said_and_cannot_be_sent_on_is_the_models_error(
    name: str, value: Any, why: str
) -> None:
    for request in (rendered(stop=value), rendered(sampling_params={"stop": value})):
        told = Engine({"chat/completions/render": request})
        with pytest.raises(MalformedAnswerError, match=rf"render .*{why}.*goes back to it"):
            await DIALECTS[name].ask(question(), EngineOptions(), told.post)


@pytest.mark.parametrize(("value", "why"), UNSENDABLE)
async def test_a_stop_reason_that_cannot_be_sent_on_is_the_models_error(value: Any, why: str) -> None:
    told = engine("vllm-generate", vllm_generate(stop_reason=value))
    with pytest.raises(MalformedAnswerError, match=rf"stop_reason .*{why}"):
        await DIALECTS["vllm-generate"].ask(question(), EngineOptions(), told.post)
    assert "chat/completions/derender" not in dict(told.posted)


def test_what_goes_back_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    deep: Any = 1
    for _ in range(99):
        deep = [deep]
    check_sent(deep, "x")
    with pytest.raises(MalformedAnswerError, match="x has lists and objects in each other 101 deep, the "):
        check_sent([deep], "x")
    monkeypatch.setattr(sizes, "MAX_SENT_VALUES", 1000)
    monkeypatch.setattr(sizes, "MAX_SENT_BYTES", 1000)
    check_sent(["a"] * 1000, "x")
    for value in ([1] * 1001, {str(key): 1 for key in range(501)}, [LONGEST_INT] * 5):
        with pytest.raises(MalformedAnswerError, match="values or more, the limit is 1000"):
            check_sent(value, "x")
    with pytest.raises(MalformedAnswerError, match="1002 bytes of text or more, the limit is 1000"):
        check_sent({"a": "é" * 500, "b": ""}, "x")


async def test_too_many_images_of_a_prompt_are_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sizes.MAX_SENT_BYTES > 6 * (32 << 20)  # six images of a megapixel, as vLLM renders them
    monkeypatch.setattr(sizes, "MAX_SENT_BYTES", 1000)
    told = Engine({"chat/completions/render": rendered(features={"kwargs_data": {"image": ["A" * 1001]}})})
    with pytest.raises(MalformedAnswerError, match=r"1000; send fewer or smaller .* vllm-chat"):
        await DIALECTS["vllm-generate"].ask(question(), EngineOptions(), told.post)
    with pytest.raises(MalformedAnswerError, match="the limit is 1000; check the engine's URL and version"):
        await ask("vllm-generate", vllm_generate(stop_reason="A" * 1001))


@pytest.mark.parametrize("name", ["vllm-generate", "vllm-completions"])
async def test_so_are_the_ids(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "MAX_SENT_VALUES", len(PROMPT) - 1)
    with pytest.raises(MalformedAnswerError, match="has 5 token ids, the limit is 4"):
        await ask(name)


async def test_so_are_the_sampled_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "MAX_SENT_VALUES", 20)
    with pytest.raises(MalformedAnswerError, match="generate has 21 token ids, the limit is 20"):
        await ask("vllm-generate", vllm_generate(token_ids=SAMPLED * 7))


# Threads.


@pytest.mark.parametrize(
    ("name", "large"),
    [
        ("openai-chat", "chat/completions"),
        ("vllm-completions", "chat/completions/render"),
        ("vllm-generate", "chat/completions/render"),
        ("vllm-generate", "/inference/v1/generate"),
        ("vllm-generate", "chat/completions/derender"),
    ],
)
async def test_each_large_response_is_read_beside_the_loop(
    name: str, large: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = engine(name)
    told._responses = {path: LargeObject(said) if path == large else said
                       for path, said in told._responses.items()}  # fmt: skip
    original, aside = asyncio.to_thread, []

    async def seen(*args: Any) -> Any:
        aside.append(args)
        return await original(*args)

    monkeypatch.setattr(asyncio, "to_thread", seen)
    await DIALECTS[name].ask(question(), EngineOptions(), told.post)
    assert aside
    assert not [path for path, body in told.posted if isinstance(body, LargeObject)]
