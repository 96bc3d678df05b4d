"""What each dialect makes of an answer: all of it, or a hole with its reason where a part cannot be used."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from env_worker.domain import Message, WeightVersionSpan
from env_worker.model.dialects.base import LOGPROBS, TOKEN_IDS, WEIGHT_VERSIONS, EngineOptions
from env_worker.model.errors import MalformedAnswerError
from tests.unit.worker.model.responses import (
    ALL,
    HEADS,
    MASKS,
    PROMPT,
    SAMPLED,
    SAMPLING_PATH,
    ask,
    plain,
    question,
    rows,
    sglang_chat,
    vllm_chat,
    vllm_completions,
    vllm_generate,
)
from tests.unit.worker.model.responses import (
    LOGPROBS as VALUES,
)

NAMES = list(SAMPLING_PATH)
WITH_IDS = NAMES[1:]
WITH_MASKS = ("vllm-generate", "sglang-chat")
MASKED = EngineOptions(arrays=frozenset({"sampling_mask"}))


@pytest.mark.parametrize("name", WITH_IDS)
async def test_everything_is_taken(name: str) -> None:
    answer = await ask(name)
    assert answer.holes == {}
    reasoning = "" if name == "vllm-completions" else "hm"
    assert answer.message == Message.assistant("hi", reasoning=reasoning)
    assert (answer.finish_reason, answer.model) == ("stop", "m")
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (5, 3, 4)
    assert answer.prompt_ids is not None
    assert answer.prompt_ids.tolist() == PROMPT
    assert answer.sampled_ids is not None
    assert answer.sampled_ids.tolist() == SAMPLED
    assert answer.logprobs is not None
    assert answer.logprobs.tolist() == VALUES
    assert answer.top_logprobs is not None
    assert answer.top_logprobs.ids.tolist() == [token for head in HEADS for token, _ in head[:2]]
    assert answer.top_logprobs.logprobs.tolist() == [value for head in HEADS for _, value in head[:2]]
    assert answer.top_logprobs.counts.tolist() == [2, 2, 2]
    assert answer.routing is not None
    assert answer.routing.start == 0
    assert np.array_equal(answer.routing.rows, rows())
    assert answer.weight_versions == (WeightVersionSpan("v1", 0, 2), WeightVersionSpan("v2", 2, 3))
    assert (answer.sampling_mask is not None) == (name in WITH_MASKS)
    if answer.sampling_mask is not None:
        assert answer.sampling_mask.ids.tolist() == [token for mask in MASKS for token in mask]
        assert answer.sampling_mask.counts.tolist() == [2, 2, 1]


async def test_openai_chat_has_text_and_says_what_it_has_not() -> None:
    answer = await ask("openai-chat")
    assert answer.message == Message.assistant("hi", reasoning="hm")
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (5, 3, 4)
    assert answer.prompt_ids is None
    assert answer.sampled_ids is None
    assert answer.logprobs is None
    assert set(answer.holes) == {"routed_experts", "top_logprobs"}
    assert "openai-chat has no token ids" in answer.holes["top_logprobs"]
    assert (await ask("openai-chat", None, question(logprobs=0), EngineOptions())).holes == {}


@pytest.mark.parametrize("name", ["vllm-chat", "vllm-completions"])
async def test_masks_where_the_api_has_none_are_a_hole(name: str) -> None:
    answer = await ask(name, None, question(), MASKED)
    assert answer.holes == {
        "sampling_mask": "vLLM has sampling masks on /inference/v1/generate only; set the dialect to "
        "vllm-generate"
    }


@pytest.mark.parametrize("name", WITH_IDS)
async def test_heads_that_nobody_gave_a_width_are_a_hole(name: str) -> None:
    answer = await ask(name, None, question(logprobs=0))
    assert set(answer.holes) == {"top_logprobs"}
    assert "set logprobs to how many" in answer.holes["top_logprobs"]


MAKERS = {
    "vllm-chat": vllm_chat,
    "vllm-completions": vllm_completions,
    "vllm-generate": vllm_generate,
    "sglang-chat": sglang_chat,
}


def changed(name: str, **fields: Any) -> dict[str, Any]:
    """The dialect's response with fields of its choice, or of SGLang's meta_info, replaced; keys that start
    with "choice_" are always of the choice."""
    made = MAKERS[name]()
    choice = made["choices"][0]
    for key, value in fields.items():
        inner = choice["meta_info"] if name == "sglang-chat" and not key.startswith("choice_") else choice
        inner[key.removeprefix("choice_")] = value
    return made


@pytest.mark.parametrize("null", [True, False])
@pytest.mark.parametrize("name", WITH_IDS)
async def test_absent_is_null_and_each_absence_has_a_reason(name: str, null: bool) -> None:
    made = MAKERS[name]()
    choice = made["choices"][0]
    gone = {"message", "text", "token_ids", "response_token_ids", "prompt_token_ids"}
    for key in set(choice) - gone:
        if null:
            choice[key] = None
        else:
            del choice[key]
    made["usage"] = None
    made["metadata"] = None
    answer = await ask(name, made)
    assert set(answer.holes) == {"routed_experts", "top_logprobs", LOGPROBS}
    assert answer.weight_versions == ()
    assert answer.sampled_ids is not None
    assert (answer.prompt_tokens, answer.completion_tokens) == (5, 3)
    # What nobody asked for is not missing.
    assert set((await ask(name, made, question(logprobs=0), EngineOptions())).holes) == {LOGPROBS}


@pytest.mark.parametrize("name", WITH_IDS)
@pytest.mark.parametrize("ids", [None, "x", [1, "2"], [1, 2, -3], [1, True], [2**31]])
async def test_without_token_ids_there_is_nothing_per_token(name: str, ids: Any) -> None:
    key = "response_token_ids" if name == "sglang-chat" else "token_ids"
    asking = ask(name, changed(name, **{f"choice_{key}": ids}), options=ALL)
    if name == "vllm-generate":  # there, ids are all there is
        with pytest.raises(MalformedAnswerError, match="no tokens to make a message of"):
            await asking
        return
    answer = await asking
    assert answer.message.text == "hi"
    assert answer.prompt_ids is None
    assert answer.sampled_ids is None
    assert answer.logprobs is None
    assert answer.routing is None
    assert set(answer.holes) == {TOKEN_IDS, LOGPROBS, "routed_experts", "top_logprobs"}
    assert answer.holes["routed_experts"].startswith("no token ids: ")


@pytest.mark.parametrize("name", WITH_IDS)
async def test_ids_that_do_not_agree_with_the_usage_are_a_hole_with_both_numbers(name: str) -> None:
    made = MAKERS[name]()
    made["usage"]["completion_tokens"] = 4
    answer = await ask(name, made)
    assert answer.holes[TOKEN_IDS] == "the response has 3 token ids, but counts 4 completion tokens"
    assert answer.prompt_ids is answer.sampled_ids is None
    assert answer.completion_tokens == 4


@pytest.mark.parametrize("name", WITH_IDS)
async def test_a_broken_field_is_a_hole_and_the_rest_stays(name: str) -> None:
    versions: dict[str, Any] = {"weight_versions": [{"version": "v", "start": 0, "end": 9}]}
    made = changed(name, routed_experts="AAAA", **versions)
    if name == "sglang-chat":
        made["metadata"] = None
    answer = await ask(name, made)
    assert set(answer.holes) == {"routed_experts", WEIGHT_VERSIONS}
    assert answer.top_logprobs is not None
    assert answer.logprobs is not None
    # What is there but wrong is told also where nobody asked for it.
    assert set((await ask(name, made, question(logprobs=0), EngineOptions())).holes) == set(answer.holes)


@pytest.mark.parametrize("value", [-9999.0, None, math.nan, -math.inf, 0.5])
async def test_a_missing_logprob_leaves_the_candidates(value: Any) -> None:
    made = vllm_chat()
    made["choices"][0]["logprobs"]["content"][1]["logprob"] = value
    answer = await ask("vllm-chat", made)
    assert set(answer.holes) == {LOGPROBS}
    assert answer.logprobs is None
    assert answer.top_logprobs is not None


async def test_a_sampled_token_that_the_engine_has_no_entry_for() -> None:
    made = vllm_chat()
    made["choices"][0]["logprobs"]["content"][1] |= {"logprob": -9999.0, "top_logprobs": []}
    answer = await ask("vllm-chat", made)
    assert set(answer.holes) == {LOGPROBS}
    assert answer.top_logprobs is not None
    assert answer.top_logprobs.counts.tolist() == [2, 0, 2]
    made = vllm_completions()
    made["choices"][0]["logprobs"]["token_logprobs"][1] = None
    made["choices"][0]["logprobs"]["top_logprobs"][1] = None
    answer = await ask("vllm-completions", made)
    assert set(answer.holes) == {LOGPROBS}
    assert answer.top_logprobs is not None
    assert answer.top_logprobs.counts.tolist() == [2, 0, 2]


@pytest.mark.parametrize("place", ["sglext", "choice", "meta_info"])
async def test_sglangs_places_of_routing_rows(place: str) -> None:
    made = sglang_chat(routed_experts=None)
    choice = made["choices"][0]
    sent = {"routed_experts": plain(rows(dtype="<i4"))}
    if place == "sglext":
        made["sglext"] = sent
    elif place == "choice":
        choice["sgl_ext"] = sent
    else:
        choice["meta_info"] |= sent
    answer = await ask("sglang-chat", made)
    assert answer.routing is not None
    assert np.array_equal(answer.routing.rows, rows())


async def test_sglangs_finish_reason_may_be_an_object_and_its_versions_within() -> None:
    made = sglang_chat(weight_versions=[{"version": "v", "start": 0, "end": 3}])
    made["metadata"] = {"weight_version": "v"}
    made["choices"][0]["finish_reason"] = None
    answer = await ask("sglang-chat", made)
    assert answer.finish_reason == "stop"
    assert answer.weight_versions == (WeightVersionSpan("v", 0, 3),)


async def test_vllm_0_21_has_routing_in_two_nested_lists() -> None:
    whole = rows().tolist()
    made = changed("vllm-chat", routed_experts=whole[5:])
    made["prompt_routed_experts"] = whole[:5]
    answer = await ask("vllm-chat", made, question(known=PROMPT))
    assert answer.routing is not None
    assert answer.routing.start == 0
    assert np.array_equal(answer.routing.rows, rows())


async def test_an_abort_without_a_token_has_an_empty_answer() -> None:
    made = vllm_chat(
        token_ids=[], logprobs=None, routed_experts=None, weight_versions=[], finish_reason="abort"
    )
    made["usage"]["completion_tokens"] = 0
    made["choices"][0]["message"]["content"] = None
    answer = await ask("vllm-chat", made)
    assert set(answer.holes) == {"routed_experts"}
    assert answer.finish_reason == "abort"
    assert answer.sampled_ids is not None
    assert len(answer.sampled_ids) == 0


async def test_reasons_are_not_longer_than_a_node_takes() -> None:
    made = vllm_chat()
    made["choices"][0]["logprobs"]["content"][0]["token"] = "x" * 10_000
    answer = await ask("vllm-chat", made)
    assert max(map(len, answer.holes.values())) <= 500
