"""What each dialect asks for: parameters by their right names, every array, one answer."""

from __future__ import annotations

from typing import Any

import pytest

from env_worker.domain import ImagePart, Message, SamplingParams, TextPart, ToolCall
from env_worker.model.dialects import DIALECTS
from env_worker.model.dialects.base import EngineOptions
from env_worker.model.errors import EngineRefusedError, InexpressibleError, MalformedAnswerError
from tests.unit.worker.model.responses import (
    ALL,
    PROMPT,
    SAMPLING_PATH,
    engine,
    question,
    vllm_chat,
)

NAMES = list(SAMPLING_PATH)
TYPED: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "max_tokens": 7,
    "stop": ("a", "b"),
    "seed": 3,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.2,
}
ENGINES_OWN: dict[str, Any] = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
CONVERSATION = (
    Message.system("be brief"),
    Message.user((TextPart("look 🙂"), ImagePart("data:image/png;base64,AA=="))),
    Message.assistant("", reasoning="because", tool_calls=[ToolCall("1", "f", '{"broken": ')]),
    Message.tool("done", "1"),
)


async def body(dialect: str, options: EngineOptions = ALL, path: str = "", **asked: Any) -> dict[str, Any]:
    """What `dialect` posts to `path`, or to the path that samples."""
    told = engine(dialect)
    await DIALECTS[dialect].ask(question(**asked), options, told.post)
    return told.body(path or SAMPLING_PATH[dialect])


def test_the_dialects_are_these() -> None:
    assert list(DIALECTS) == NAMES
    for name, dialect in DIALECTS.items():
        assert dialect.name == name
        assert dialect.endpoint == "/" + SAMPLING_PATH[name].removeprefix("/")


async def test_openai_chat_sends_openais_own_names_and_nothing_else() -> None:
    sent = await body("openai-chat", messages=CONVERSATION, tools=[TOOL], extra={"user": "u"}, **TYPED)
    assert sent == {
        "model": "m",
        "messages": [message.to_openai() for message in CONVERSATION],
        "tools": [TOOL],
        "temperature": 0.5,
        "top_p": 0.9,
        "max_completion_tokens": 7,
        "stop": ["a", "b"],
        "seed": 3,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "user": "u",
    }
    assert set(await body("openai-chat")) == {"model", "messages"}


@pytest.mark.parametrize("name", ENGINES_OWN)
async def test_openai_chat_refuses_parameters_that_openai_has_not(name: str) -> None:
    told = engine("openai-chat")
    with pytest.raises(InexpressibleError, match=f"sampling parameter {name} is .*vllm-chat"):
        await DIALECTS["openai-chat"].ask(question(**{name: ENGINES_OWN[name]}), ALL, told.post)
    assert not told.posted


async def test_openai_chat_leaves_out_what_asks_for_nothing() -> None:
    sent = await body("openai-chat", top_k=-1, min_p=0.0, repetition_penalty=1.0)
    assert set(sent) == {"model", "messages"}
    assert set(await body("openai-chat", top_k=0)) == {"model", "messages"}


@pytest.mark.parametrize("name", ["vllm-chat", "sglang-chat"])
async def test_engines_get_all_parameters_under_their_names(name: str) -> None:
    sent = await body(name, tools=[TOOL], extra={"cache_salt": "s", "priority": 2}, **TYPED, **ENGINES_OWN)
    expected = {
        **TYPED,
        **ENGINES_OWN,
        "stop": ["a", "b"],
        "max_completion_tokens": 7,
        "model": "m",
        "tools": [TOOL],
        "cache_salt": "s",
        "priority": 2,
        "logprobs": True,
        "return_token_ids": True,
    }
    del expected["max_tokens"]
    assert sent.items() >= expected.items()
    assert not {"max_tokens", "stream", "n", "extra"} & sent.keys()
    assert (await body(name, top_k=0))["top_k"] == -1


async def test_vllm_chat_asks_for_ids_as_names_and_for_versions() -> None:
    sent = await body("vllm-chat")
    assert sent["return_tokens_as_token_ids"] is sent["return_weight_versions"] is True
    assert sent["session_id"] == "conversation-1"
    assert "routed_experts_prompt_start" not in sent


@pytest.mark.parametrize(("wanted", "asked"), [(None, 0), (0, 0), (1, 2), (19, 20), (20, 20), (50, 50)])
async def test_vllm_chat_asks_for_one_candidate_more_within_the_usual_limit(
    wanted: int | None, asked: int
) -> None:
    assert (await body("vllm-chat", logprobs=wanted))["top_logprobs"] == asked


async def test_reasoning_has_both_of_vllms_names() -> None:
    for name, path in (("vllm-chat", ""), ("vllm-generate", "chat/completions/render")):
        message = (await body(name, path=path, messages=CONVERSATION))["messages"][2]
        assert message["reasoning"] == message["reasoning_content"] == "because"
    assert "reasoning" not in (await body("sglang-chat", messages=CONVERSATION))["messages"][2]


async def test_only_the_new_rows_are_asked_for() -> None:
    known = [*PROMPT, 9]
    assert (await body("vllm-chat", known=known))["routed_experts_prompt_start"] == 5
    assert (await body("sglang-chat", known=known))["routed_experts_start_len"] == 5
    without = EngineOptions()
    assert "routed_experts_prompt_start" not in await body("vllm-chat", without, known=known)
    assert "return_routed_experts" not in await body("sglang-chat", without, known=known)
    # These know the prompt before they ask, and whether it goes on from what is known.
    assert (await body("vllm-completions", known=PROMPT[:3]))["routed_experts_prompt_start"] == 2
    sampling = (await body("vllm-generate", known=PROMPT[:3]))["sampling_params"]
    assert sampling["routed_experts_prompt_start"] == 2
    for other in ([*PROMPT, 9], [1, 2], PROMPT):
        assert "routed_experts_prompt_start" not in await body("vllm-completions", known=other)
        sampling = (await body("vllm-generate", known=other))["sampling_params"]
        assert "routed_experts_prompt_start" not in sampling


@pytest.mark.parametrize("name", ["vllm-chat", "sglang-chat"])
async def test_a_start_behind_the_prompts_end_is_asked_again_without(name: str) -> None:
    refused = EngineRefusedError("400: routed_experts_prompt_start must be within the prompt", status=400)
    told = engine(name, [refused, vllm_chat() if name == "vllm-chat" else {"choices": []}])
    asking = DIALECTS[name].ask(question(known=range(50)), ALL, told.post)
    if name == "sglang-chat":
        with pytest.raises(MalformedAnswerError):
            await asking
    else:
        answer = await asking
        assert answer.routing is not None
        assert answer.routing.start == 0
    key = "routed_experts_prompt_start" if name == "vllm-chat" else "routed_experts_start_len"
    assert [sent.get(key) for _, sent in told.posted] == [49, None]


@pytest.mark.parametrize(
    "refusal",
    [
        EngineRefusedError("400: too long", status=400),
        EngineRefusedError("503: routed_experts", status=503, retryable=True),
    ],
)
async def test_any_other_refusal_is_the_answer(refusal: EngineRefusedError) -> None:
    told = engine("vllm-chat", refusal)
    with pytest.raises(EngineRefusedError):
        await DIALECTS["vllm-chat"].ask(question(known=range(50)), ALL, told.post)
    assert len(told.posted) == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", ["model", "messages", "stream", "n", "top_logprobs"])
async def test_extra_keys_cannot_make_it_another_turn(name: str, key: str) -> None:
    told = engine(name)
    with pytest.raises(InexpressibleError, match=f"extra sampling key '{key}'"):
        await DIALECTS[name].ask(question(extra={key: 1}), ALL, told.post)
    assert not told.posted


@pytest.mark.parametrize(("name", "key"), [("vllm-completions", "prompt"), ("vllm-generate", "token_ids")])
async def test_extra_keys_cannot_replace_the_prompt(name: str, key: str) -> None:
    with pytest.raises(InexpressibleError, match=key):
        await DIALECTS[name].ask(question(extra={key: [1]}), ALL, engine(name).post)


async def test_sglang_is_asked_for_what_was_named_only() -> None:
    sent = await body("sglang-chat", EngineOptions(arrays=frozenset({"sampling_mask"})))
    assert sent["return_sampling_mask"] is sent["return_meta_info"] is True
    assert "return_routed_experts" not in sent
    assert (await body("sglang-chat"))["return_routed_experts"] is True
    assert "return_sampling_mask" not in await body("sglang-chat")


def test_sampling_params_have_a_name_in_every_api() -> None:
    typed = {**TYPED, **ENGINES_OWN, "logprobs": 1}
    assert typed.keys() == SamplingParams(**typed).as_dict().keys()
