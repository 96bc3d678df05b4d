"""The scripted engine's edge cases, each on the endpoints that have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.engine import FLOOR, SGLANG_0_5_23, VLLM_0_21, VLLM_0_33, Quirk, Reply, ScriptedEngine

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    Ask = Callable[..., Awaitable[tuple[int, dict[str, Any]]]]

CHAT, COMPLETIONS, GENERATE = "v1/chat/completions", "v1/completions", "inference/v1/generate"
ASKED = [{"role": "user", "content": "Say hi"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
WHOLE: Mapping[str, Any] = {
    "messages": ASKED,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "return_weight_versions": True,
    "logprobs": True,
    "top_logprobs": 3,
}


ENDPOINTS = {
    "chat": (VLLM_0_33, CHAT, WHOLE),
    "lists": (VLLM_0_21, CHAT, WHOLE),
    "completions": (VLLM_0_33, COMPLETIONS, dict(WHOLE) | {"prompt": "hello", "logprobs": 3}),
    "generate": (
        VLLM_0_33,
        GENERATE,
        {"token_ids": [1, 2, 3], "sampling_params": {"logprobs": 3, "top_k": 2}},
    ),
    "sglang": (
        SGLANG_0_5_23,
        CHAT,
        dict(WHOLE) | {"return_meta_info": True, "return_routed_experts": True, "return_sampling_mask": True},
    ),
}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_each_quirk_shows_or_changes_nothing(ask: Ask, endpoint: str) -> None:
    """With one quirk or another the engine answers, but for NaN, which vLLM's JSON cannot hold."""
    profile, path, body = ENDPOINTS[endpoint]
    replies = [Reply("hi", calls=(("add", "{}"),), quirks=frozenset({quirk})) for quirk in Quirk]
    shown = {}
    async with ScriptedEngine(profile, [Reply("hi", calls=(("add", "{}"),)), *replies]) as engine:
        _, plain = await ask(engine, path, dict(body) | {"tools": TOOLS})
        for quirk in Quirk:
            status, answer = await ask(engine, path, dict(body) | {"tools": TOOLS})
            shown[quirk] = answer != plain
            fails = quirk is Quirk.LOGPROB_NAN and profile.family == "vllm" and endpoint != "generate"
            assert status == (500 if fails else 200), quirk
    for quirk in (Quirk.USAGE_WRONG, Quirk.LOGPROB_POSITIVE, Quirk.CHOICES_EMPTY, Quirk.ROUTING_SHORT):
        assert shown[quirk], quirk
    assert shown[Quirk.ARGUMENTS_PARSED] == (endpoint not in ("completions", "generate"))
    assert shown[Quirk.ROUTING_WHOLE] is False  # no start was asked for


async def test_edge_values_of_the_heads(ask: Ask) -> None:
    quirks = [Quirk.SAMPLED_OUTSIDE_TOP_K, Quirk.SAMPLED_MISSING, Quirk.LOGPROB_MINUS_INF, Quirk.TOKEN_TEXTS]
    replies = [Reply("äa", quirks=frozenset({quirk})) for quirk in quirks] * 2
    async with ScriptedEngine(reply=replies) as engine:
        chat = [(await ask(engine, CHAT, WHOLE))[1]["choices"][0]["logprobs"]["content"] for _ in quirks]
        completion_request = {"prompt": "x", "logprobs": 3, "return_tokens_as_token_ids": True}
        completions = [
            (await ask(engine, COMPLETIONS, completion_request))[1]["choices"][0]["logprobs"] for _ in quirks
        ]
    outside, missing, infinite, texts = chat
    assert [len(entry["top_logprobs"]) for entry in outside] == [3] * 4
    assert outside[0]["top_logprobs"][0]["logprob"] == outside[0]["logprob"]
    assert (missing[2]["logprob"], missing[2]["top_logprobs"]) == (FLOOR, [])
    assert infinite[2]["logprob"] == FLOOR
    assert [entry["token"] for entry in texts][:2] == ["\ufffd", "\ufffd"]
    assert len(completions[0]["top_logprobs"][0]) == 4
    assert completions[1]["token_logprobs"][2] is None
    assert completions[1]["top_logprobs"][2] is None
    assert len(completions[3]["top_logprobs"][0]) == 1  # all candidates have the same text
