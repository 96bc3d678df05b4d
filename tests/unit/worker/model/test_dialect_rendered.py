"""Dialects that render first: what is sampled, what is parsed back, and older servers."""

from __future__ import annotations

from typing import Any

import pytest

from env_worker.domain import Message
from env_worker.model.dialects import DIALECTS
from env_worker.model.errors import InexpressibleError, MalformedAnswerError
from tests.unit.worker.model.responses import (
    ALL,
    PROMPT,
    SAMPLED,
    TOKENS,
    Engine,
    derendered,
    engine,
    npy,
    question,
    rendered,
    rows,
    vllm_chat,
    vllm_completions,
    vllm_generate,
)

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


async def test_completions_samples_the_rendered_prompt() -> None:
    told = engine("vllm-completions")
    asked = question(tools=[TOOL], extra={"chat_template_kwargs": {"a": 1}}, top_k=4)
    await DIALECTS["vllm-completions"].ask(asked, ALL, told.post)
    chat = told.body("chat/completions/render")
    assert chat["tools"] == [TOOL]
    assert chat["chat_template_kwargs"] == {"a": 1}
    sent = told.body("completions")
    assert sent["prompt"] == PROMPT
    assert (sent["top_k"], sent["logprobs"], sent["max_tokens"]) == (4, 2, 99)
    assert "max_completion_tokens" not in sent
    await DIALECTS["vllm-completions"].ask(question(max_tokens=5), ALL, told.post)
    assert told.body("completions")["max_tokens"] == 5


async def test_completions_refuses_what_it_would_not_see() -> None:
    told = Engine({"chat/completions/render": rendered(features={"mm_hashes": {}})})
    with pytest.raises(InexpressibleError, match="images or audio"):
        await DIALECTS["vllm-completions"].ask(question(), ALL, told.post)


async def test_generate_sends_the_rendered_request_without_what_is_unset() -> None:
    told = engine("vllm-generate")
    await DIALECTS["vllm-generate"].ask(question(max_tokens=9), ALL, told.post)
    assert told.body("chat/completions/render")["max_completion_tokens"] == 9
    assert told.body("/inference/v1/generate") == {
        "token_ids": PROMPT,
        "sampling_params": {"temperature": 0.5, "max_tokens": 99, "logprobs": 2},
        "model": "m",
        "stream": False,
        "return_token_ids": True,
        "priority": 3,
        "parse_context": {"tools": None},
    }


async def test_generate_has_its_ids_parsed_by_the_server() -> None:
    told = engine("vllm-generate", vllm_generate(finish_reason="stop", stop_reason="END"))
    await DIALECTS["vllm-generate"].ask(question(tools=[TOOL]), ALL, told.post)
    sent = told.body("chat/completions/derender")
    assert sent["chat_request"] == told.body("chat/completions/render")
    assert sent["prompt_tokens"] == len(PROMPT)
    assert sent["generate_response"]["prompt_token_ids"] == PROMPT
    assert sent["generate_response"]["choices"] == [
        {"index": 0, "token_ids": SAMPLED, "finish_reason": "stop", "stop_reason": "END"}
    ]


async def test_an_answer_without_tokens_needs_no_parsing() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 0}
    response = vllm_generate(
        token_ids=[], logprobs=None, sampling_mask=[], weight_versions=[], finish_reason="abort"
    )
    response |= {"usage": usage}
    response["choices"][0]["routed_experts"] = npy(rows()[:4])
    told = engine("vllm-generate", response)
    answer = await DIALECTS["vllm-generate"].ask(question(), ALL, told.post)
    assert "chat/completions/derender" not in dict(told.posted)
    assert answer.message == Message.assistant("")
    assert answer.finish_reason == "abort"
    assert answer.sampled_ids is not None
    assert len(answer.sampled_ids) == 0
    assert not answer.holes


@pytest.mark.parametrize("token_ids", [None, [], ["1"], 7, [-1]])
async def test_a_prompt_that_was_not_rendered_is_malformed(token_ids: Any) -> None:
    for name in ("vllm-completions", "vllm-generate"):
        told = Engine({"chat/completions/render": rendered(token_ids=token_ids)})
        with pytest.raises(MalformedAnswerError, match=r"chat/completions/render gave .*prompt"):
            await DIALECTS[name].ask(question(), ALL, told.post)


async def test_older_generate_names_ids_in_text_and_tells_no_prompt() -> None:
    content = vllm_chat()["choices"][0]["logprobs"]
    response = vllm_generate(logprobs=content)
    for key in ("prompt_token_ids", "usage", "model", "output_mode"):
        del response[key]
    answer = await DIALECTS["vllm-generate"].ask(question(), ALL, engine("vllm-generate", response).post)
    assert not answer.holes
    assert answer.prompt_ids is not None
    assert answer.prompt_ids.tolist() == PROMPT
    assert (answer.prompt_tokens, answer.completion_tokens) == (len(PROMPT), len(SAMPLED))
    assert answer.model == "m"
    assert answer.routing is not None
    assert len(answer.routing.rows) == TOKENS - 1


async def test_derender_has_the_finish_reason_of_tool_calls() -> None:
    parsed = derendered()
    parsed["choices"][0]["finish_reason"] = "tool_calls"
    told = Engine(
        {
            "chat/completions/render": rendered(),
            "/inference/v1/generate": vllm_generate(),
            "chat/completions/derender": parsed,
        }
    )
    answer = await DIALECTS["vllm-generate"].ask(question(), ALL, told.post)
    assert answer.finish_reason == "tool_calls"


async def test_completions_leaves_text_as_it_is() -> None:
    text = '<think>hm</think><tool_call>{"name": '
    response = vllm_completions()
    response["choices"][0]["text"] = text
    told = engine("vllm-completions", response)
    answer = await DIALECTS["vllm-completions"].ask(question(), ALL, told.post)
    assert answer.message == Message.assistant(text)
