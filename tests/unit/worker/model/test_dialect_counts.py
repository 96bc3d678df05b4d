"""Token ids are as many as the engine has counted, words are short, and numpy's refusals are holes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from env_worker.domain import WeightVersionSpan
from env_worker.model.dialects.base import TOKEN_IDS
from tests.unit.worker.model.responses import (
    ask,
    sglang_chat,
    vllm_chat,
    vllm_completions,
    vllm_generate,
)

if TYPE_CHECKING:
    from collections.abc import Callable

RESPONSES: dict[str, Callable[[], dict[str, Any]]] = {
    "vllm-chat": vllm_chat,
    "vllm-completions": vllm_completions,
    "vllm-generate": vllm_generate,
    "sglang-chat": sglang_chat,
}


@pytest.mark.parametrize("name", RESPONSES)
async def test_ids_of_another_number_than_the_engine_counted_are_a_hole(name: str) -> None:
    """Of the prompt it counts what it forwarded: images with all of their places, whatever was rendered."""
    response = RESPONSES[name]()
    response["usage"]["prompt_tokens"] = 99
    answer = await ask(name, response)
    assert answer.holes[TOKEN_IDS] == "the response has 5 ids of the prompt, but counts 99 prompt tokens"
    for field in (answer.prompt_ids, answer.sampled_ids, answer.logprobs, answer.routing):
        assert field is None
    assert answer.prompt_tokens == 99
    assert answer.message.text == "hi"
    for uncounted in (0, None, -1, "5"):
        response["usage"]["prompt_tokens"] = uncounted
        assert (await ask(name, response)).holes == {}


@pytest.mark.parametrize("name", RESPONSES)
async def test_a_prompt_without_ids_is_a_hole(name: str) -> None:
    """It would put the whole turn at a root, as if nothing had been said before."""
    response = RESPONSES[name]()
    of_choice = name in ("vllm-completions", "sglang-chat")
    (response["choices"][0] if of_choice else response)["prompt_token_ids"] = []
    answer = await ask(name, response)
    assert answer.holes[TOKEN_IDS] == "the response has a prompt without token ids"
    assert answer.prompt_ids is None


async def test_words_of_any_length_are_cut() -> None:
    made = vllm_chat(
        finish_reason="f" * 10_000, weight_versions=[{"version": "v" * 10_000, "start": 0, "end": 3}]
    )
    made["model"] = "m" * 10_000
    answer = await ask("vllm-chat", made)
    assert (answer.model, answer.finish_reason) == ("m" * 256, "f" * 256)
    assert answer.weight_versions == (WeightVersionSpan("v" * 256, 0, 3),)


async def test_what_numpy_refuses_is_a_hole_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (ValueError("no"), OverflowError("no"), MemoryError("no")):

        def refuses(*_: Any, error: Exception = error, **__: Any) -> Any:
            raise error

        monkeypatch.setattr("env_worker.model.dialects.vllm_chat.vllm_rows", refuses)
        answer = await ask("vllm-chat")
        assert answer.holes == {
            "routed_experts": f"routed_experts of the response fits no array: {type(error).__name__} no"
        }
        assert answer.top_logprobs is not None
