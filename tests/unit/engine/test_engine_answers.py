"""The scripted engine answers as the engines' pages say, field by field and version by version."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.engine import (
    IM_END,
    OPENAI,
    SGLANG_0_5_23,
    VLLM_0_13,
    VLLM_0_21,
    VLLM_0_22,
    VLLM_0_28,
    VLLM_0_33,
    Profile,
    Reply,
    ScriptedEngine,
    Served,
    by_turn,
    encode,
    expected_ids,
    expected_logprobs,
    expected_mask,
    expected_routing,
    expected_versions,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from numpy.typing import NDArray

    Ask = Callable[..., Awaitable[tuple[int, dict[str, Any]]]]

CHAT, COMPLETIONS, GENERATE = "v1/chat/completions", "v1/completions", "inference/v1/generate"
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hi 😀"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
WHOLE: Mapping[str, Any] = {
    "messages": ASKED,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "return_weight_versions": True,
    "logprobs": True,
    "top_logprobs": 3,
}


def npy(text: str) -> NDArray[Any]:
    array: NDArray[Any] = np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
    return array


def ids_of_tokens(entries: list[dict[str, Any]]) -> list[int]:
    return [int(entry["token"].removeprefix("token_id:")) for entry in entries]


@pytest.mark.parametrize(
    "reply",
    [
        Reply("Hello there"),
        Reply(" white space \n"),
        Reply("half 😀", reasoning="I should greet"),
        Reply("calling", calls=(("add", '{"a": 1}'), ("add", "{broken"))),
        Reply(""),
    ],
    ids=lambda reply: repr(reply.text),
)
async def test_what_was_sampled_is_a_prefix_of_the_next_prompt(ask: Ask, reply: Reply) -> None:
    body = dict(WHOLE) | {"tools": TOOLS}
    async with ScriptedEngine(reply=by_turn(reply, "done")) as engine:
        _, first = await ask(engine, CHAT, body)
        message = first["choices"][0]["message"]
        more = [*ASKED, message, {"role": "user", "content": "And?"}]
        _, second = await ask(engine, CHAT, body | {"messages": more})
    known = first["prompt_token_ids"] + first["choices"][0]["token_ids"]
    assert first["prompt_token_ids"] == expected_ids(ASKED, TOOLS).tolist()
    assert second["prompt_token_ids"] == expected_ids(more, TOOLS).tolist()
    assert second["prompt_token_ids"][: len(known)] == known
    assert [call["function"]["arguments"] for call in message.get("tool_calls", [])] == [
        arguments for _, arguments in reply.calls
    ]
    assert second["choices"][0]["message"]["content"] == "done"


async def test_a_template_that_retokenizes_breaks_the_prefix(ask: Ask) -> None:
    async with ScriptedEngine(served=Served(retokenize=True)) as engine:
        _, first = await ask(engine, CHAT, WHOLE)
        more = [*ASKED, first["choices"][0]["message"], {"role": "user", "content": "And?"}]
        _, second = await ask(engine, CHAT, dict(WHOLE) | {"messages": more})
    known = first["prompt_token_ids"] + first["choices"][0]["token_ids"]
    assert second["prompt_token_ids"][: len(known)] != known
    assert second["prompt_token_ids"] == expected_ids(more, retokenize=True).tolist()


async def test_vllm_chat_of_the_newest_version(ask: Ask) -> None:
    async with ScriptedEngine(VLLM_0_33, [Reply("hello", versions=("v7", "v8"))]) as engine:
        status, body = await ask(engine, CHAT, dict(WHOLE) | {"routed_experts_prompt_start": 20})
    assert status == 200
    choice = body["choices"][0]
    sampled = [*encode("hello").tolist(), IM_END]
    assert choice["token_ids"] == sampled
    assert body["usage"]["completion_tokens"] == len(sampled)
    content = choice["logprobs"]["content"]
    assert ids_of_tokens(content) == sampled
    np.testing.assert_allclose([entry["logprob"] for entry in content], expected_logprobs(6))
    assert ids_of_tokens(content[0]["top_logprobs"]) == [sampled[0], sampled[0] + 1, sampled[0] + 2]
    length = len(body["prompt_token_ids"]) + len(sampled)
    np.testing.assert_array_equal(npy(choice["routed_experts"]), expected_routing(range(20, length - 1)))
    assert choice["weight_versions"] == expected_versions(["v7", "v8"], 6)
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)


async def test_what_was_not_asked_for_is_null(ask: Ask) -> None:
    async with ScriptedEngine() as engine:
        _, body = await ask(engine, CHAT, {"messages": ASKED})
    choice = body["choices"][0]
    assert body["prompt_token_ids"] is None
    assert {choice[key] for key in ("token_ids", "logprobs", "weight_versions", "stop_reason")} == {None}
    assert choice["message"]["content"] == "turn 0: Say hi 😀"
    assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize("profile", [VLLM_0_13, VLLM_0_21, VLLM_0_22, VLLM_0_28], ids=lambda it: it.name)
async def test_routing_of_older_versions_of_vllm(ask: Ask, profile: Profile) -> None:
    async with ScriptedEngine(profile, ["hello"]) as engine:
        _, body = await ask(engine, CHAT, dict(WHOLE) | {"routed_experts_prompt_start": 20})
    choice = body["choices"][0]
    prompt = len(body["prompt_token_ids"])
    rows = expected_routing(range(prompt + 5))
    assert "weight_versions" not in choice
    if profile is VLLM_0_13:
        assert "routed_experts" not in choice
    elif profile is VLLM_0_21:
        assert body["prompt_routed_experts"] == rows[:prompt].tolist()
        assert choice["routed_experts"] == rows[prompt:].tolist()
    else:
        told = npy(choice["routed_experts"])
        assert told.dtype == (np.int32 if profile is VLLM_0_28 else np.uint8)
        np.testing.assert_array_equal(told, rows[20:] if profile is VLLM_0_28 else rows)


async def test_completions_have_both_kinds_of_ids_on_the_choice(ask: Ask) -> None:
    prompt = expected_ids(ASKED).tolist()
    request = dict(WHOLE) | {"prompt": prompt, "logprobs": 2, "max_tokens": 3}
    async with ScriptedEngine(reply=["hello"]) as engine:
        _, body = await ask(engine, COMPLETIONS, request)
    choice = body["choices"][0]
    assert choice["prompt_token_ids"] == prompt
    assert (choice["text"], choice["token_ids"]) == ("hel", encode("hel").tolist())
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["tokens"] == ["token_id:104", "token_id:101", "token_id:108"]
    assert list(choice["logprobs"]["top_logprobs"][0]) == ["token_id:104", "token_id:105"]


async def test_tokens_in_and_out_in_three_requests(ask: Ask) -> None:
    reply = Reply("so", reasoning="hm", calls=(("add", '{"a": 1}'),))
    chat = {"messages": ASKED, "tools": TOOLS, "model": "scripted"}
    served = Served(sampling_mask=True)
    async with ScriptedEngine(VLLM_0_33, [reply, reply], served=served) as engine:
        _, rendered = await ask(engine, f"{CHAT}/render", chat)
        sampling = {"logprobs": 2, "top_k": 5, "max_tokens": 200, "routed_experts_prompt_start": 9}
        request = rendered | {"sampling_params": sampling}
        _, generated = await ask(engine, GENERATE, request)
        _, parsed = await ask(engine, GENERATE, request | {"output_mode": "derender"})
        _, derendered = await ask(
            engine, f"{CHAT}/derender", {"generate_response": generated, "chat_request": chat}
        )
    assert rendered["token_ids"] == expected_ids(ASKED, TOOLS).tolist()
    choice = generated["choices"][0]
    sampled = reply.sampled()
    assert choice["token_ids"] == sampled.tolist()
    first = choice["logprobs"]["content"][0]
    assert (first["token_id"], first["rank"], len(first["top_logprobs"])) == (sampled[0], 1, 2)
    assert choice["sampling_mask"] == expected_mask(sampled).rows()
    assert choice["weight_versions"] == expected_versions(["default"], len(sampled))
    length = len(rendered["token_ids"]) + len(sampled)
    np.testing.assert_array_equal(npy(choice["routed_experts"]), expected_routing(range(9, length - 1)))
    assert (generated["output_mode"], parsed["output_mode"]) == ("tokens", "derender")
    for answer in (parsed["choices"][0], derendered["choices"][0]):
        message = answer["message"]
        assert (message["reasoning"], message["content"], answer["finish_reason"]) == (
            "hm",
            "so",
            "tool_calls",
        )
        assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    # The ids of the candidates are only told with tokens.
    assert parsed["choices"][0]["logprobs"]["content"][0]["token"] == "<"


async def test_older_generate_has_token_texts_for_ids_and_no_modes(ask: Ask) -> None:
    request = {"token_ids": [65, 66], "sampling_params": {"logprobs": 1}, "output_mode": "derender"}
    async with ScriptedEngine(VLLM_0_28, ["x"]) as engine:
        _, body = await ask(engine, GENERATE, request)
    assert "output_mode" not in body
    assert ids_of_tokens(body["choices"][0]["logprobs"]["content"]) == [120, IM_END]
    assert "message" not in body["choices"][0]


async def test_sglang_chat(ask: Ask) -> None:
    request = dict(WHOLE) | {
        "return_meta_info": True,
        "return_routed_experts": True,
        "routed_experts_start_len": 7,
        "return_sampling_mask": True,
        "top_logprobs": 2,
    }
    async with ScriptedEngine(SGLANG_0_5_23, ["hello", "hello"]) as engine:
        _, body = await ask(engine, CHAT, request)
        _, bare = await ask(engine, CHAT, {"messages": ASKED, "return_routed_experts": True})
    choice, meta = body["choices"][0], body["choices"][0]["meta_info"]
    sampled = [*encode("hello").tolist(), IM_END]
    assert choice["prompt_token_ids"] == expected_ids(ASKED).tolist()
    assert choice["response_token_ids"] == sampled
    assert [entry[1] for entry in meta["output_token_logprobs"]] == sampled
    assert [entry[1] for entry in meta["output_top_logprobs"][0]] == [104, 105]
    rows = np.frombuffer(base64.b64decode(meta["routed_experts"]), "<i4").reshape(-1, 4, 2)
    length = len(choice["prompt_token_ids"]) + len(sampled)
    np.testing.assert_array_equal(rows, expected_routing(range(7, length - 1)))
    assert meta["output_token_sampling_mask"] == expected_mask(np.array(sampled, np.int32)).rows()
    assert meta["finish_reason"] == {"type": "stop", "matched": IM_END}
    assert body["metadata"]["weight_version"] == "default"
    assert "sglext" not in body
    assert "meta_info" not in bare["choices"][0]
    assert bare["sglext"]["routed_experts"]


async def test_a_stop_string_is_cut_from_the_text_and_kept_in_the_ids(ask: Ask) -> None:
    async with ScriptedEngine(reply=["one STOP two"]) as engine:
        _, body = await ask(engine, CHAT, dict(WHOLE) | {"stop": ["STOP"]})
    choice = body["choices"][0]
    assert (choice["message"]["content"], choice["stop_reason"]) == ("one ", "STOP")
    assert choice["token_ids"] == encode("one STOP").tolist()


@pytest.mark.parametrize(
    ("profile", "path", "body", "status"),
    [
        (VLLM_0_33, CHAT, {"messages": []}, 400),
        (VLLM_0_33, CHAT, {"messages": ASKED, "model": "other"}, 404),
        (VLLM_0_33, CHAT, {"messages": ASKED, "priority": 3}, 400),
        (VLLM_0_33, CHAT, {"messages": ASKED, "top_logprobs": 2}, 400),
        (VLLM_0_33, CHAT, {"messages": ASKED, "logprobs": True, "top_logprobs": 21}, 400),
        (VLLM_0_33, CHAT, {"messages": ASKED, "routed_experts_prompt_start": 1000}, 400),
        (VLLM_0_33, GENERATE, {"token_ids": [], "sampling_params": {}}, 400),
        (VLLM_0_33, GENERATE, {"token_ids": [1], "sampling_params": {}, "output_mode": "derender"}, 400),
        (VLLM_0_33, f"{CHAT}/derender", {"generate_response": {"choices": []}}, 400),
        (VLLM_0_13, f"{CHAT}/render", {"messages": ASKED}, 404),
        (SGLANG_0_5_23, CHAT, {"messages": ASKED, "return_token_ids": True, "stream": True}, 400),
        (SGLANG_0_5_23, CHAT, {"messages": ASKED, "return_sampling_mask": True}, 400),
        (OPENAI, CHAT, {"messages": ASKED, "top_k": 5}, 400),
    ],
)
async def test_refusals(ask: Ask, profile: Profile, path: str, body: dict[str, Any], status: int) -> None:
    async with ScriptedEngine(profile) as engine:
        told, answer = await ask(engine, path, body)
    assert told == status
    error = answer if profile is SGLANG_0_5_23 else answer["error"]
    assert (error["code"], bool(error["message"])) == (status, True)
    assert [record.outcome for record in engine.requests] == ["refused"]


async def test_masks_want_bounded_sampling(ask: Ask) -> None:
    async with ScriptedEngine(served=Served(sampling_mask=True, api_key="secret")) as engine:
        status, body = await ask(engine, CHAT, WHOLE)
        assert status == 401
        engine.served = Served(sampling_mask=True)
        status, body = await ask(engine, CHAT, WHOLE)
    assert status == 400
    assert "top_k > 0" in body["error"]["message"]


async def test_a_long_turn_is_as_long_as_was_asked(ask: Ask) -> None:
    async with ScriptedEngine(reply=[Reply.long(20_000)]) as engine:
        _, body = await ask(engine, CHAT, WHOLE)
    assert len(body["choices"][0]["token_ids"]) == 20_000
    assert len(npy(body["choices"][0]["routed_experts"])) == len(body["prompt_token_ids"]) + 19_999


async def test_an_exhausted_script_refuses(ask: Ask) -> None:
    async with ScriptedEngine(reply=["only"]) as engine:
        await ask(engine, CHAT, WHOLE)
        status, body = await ask(engine, CHAT, WHOLE)
    assert status == 400
    assert "the script has 1 replies" in body["error"]["message"]


async def test_a_reply_edits_what_is_sent(ask: Ask) -> None:
    async with ScriptedEngine(
        reply=[Reply("x", edit=lambda body: body | {"choices": {"no": "list"}})]
    ) as engine:
        _, body = await ask(engine, CHAT, WHOLE)
    assert body["choices"] == {"no": "list"}
