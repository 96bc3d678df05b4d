"""Whatever an engine answers, a dialect gives an answer whose parts fit each other, or says what is wrong."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env_worker.domain import Message, Node
from env_worker.model.dialects import DIALECTS
from env_worker.model.dialects.base import EngineOptions
from env_worker.model.errors import MalformedAnswerError
from env_worker.model.json_pieces import LargeObject
from tests.unit.worker.model.responses import (
    LAYERS,
    SAMPLING_PATH,
    TOP_K,
    Engine,
    ask,
    derendered,
    npy,
    question,
    rendered,
    rows,
    sglang_chat,
    vllm_chat,
    vllm_completions,
    vllm_generate,
)

NAMES = list(SAMPLING_PATH)
OPTIONS = EngineOptions(
    arrays=frozenset({"routed_experts", "sampling_mask", "top_logprobs"}),
    routing_shape=(LAYERS, TOP_K),
    experts=256,
)
NESTED = vllm_chat(routed_experts=rows().tolist())
OBJECT = vllm_chat(
    routed_experts={"data": npy(rows())[:8], "shape": list(rows().shape), "dtype": "uint8", "start": 0}
)
VALID: dict[str, list[dict[str, Any]]] = {
    "openai-chat": [vllm_chat()],
    "vllm-chat": [vllm_chat(), NESTED, OBJECT],
    "vllm-completions": [vllm_completions()],
    "vllm-generate": [vllm_generate(), vllm_generate(logprobs=vllm_chat()["choices"][0]["logprobs"])],
    "sglang-chat": [sglang_chat()],
}
JUNK: list[Any] = [
    None, True, False, 0, -1, 3, 2**31, 2**63, 10**400, -0.5, 7.5, 1e308, float("nan"), float("inf"), "", "5",
    "token_id:5", "token_id:", "token_id:99999999999", "\ud800", "x" * 5000, "AAAA", "k05VTVBZAQA=", [], [[]],
    [None], [[None]], [1], ["a"], [[[]]], {}, {"content": 1}, {"token": 1}, {"data": "", "shape": []},
    {"data": "AAAA", "shape": [10**18, 10**18, 10**18], "dtype": "uint8"}, [{}], [{"version": "v"}],
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    found = [path]
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = dict(enumerate(value[:3])).items()
    else:
        return found
    for key, item in items:
        found += places(item, (*path, key))
    return found


def put(value: Any, path: tuple[Any, ...], action: Any) -> Any:
    """`value` with `action` done at a place: where there is still one."""
    *before, last = path
    for key in before:
        if not isinstance(value, (dict, list)) or (isinstance(value, list) and not isinstance(key, int)):
            return
        try:
            value = value[key]
        except (KeyError, IndexError):
            return
    if not isinstance(value, (dict, list)) or (isinstance(value, list) and not isinstance(last, int)):
        return
    if isinstance(value, list) and last >= len(value):
        return
    if action == "delete":
        value.pop(last, None) if isinstance(value, dict) else value.pop(last)
    elif action == "repeat" and isinstance(value, list):
        value.append(value[last])
    else:
        value[last] = copy.deepcopy(action)


RESPONSES = [
    (name, at, index, path)
    for name in NAMES
    for at in ("sample", "render", "derender")
    if at == "sample" or name == "vllm-generate" or (at == "render" and name == "vllm-completions")
    for index, valid in enumerate(VALID[name] if at == "sample" else [None])
    for path in places({"sample": valid, "render": rendered(), "derender": derendered()}[at])
    if path
]


@settings(max_examples=300)
@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from(RESPONSES),
            st.sampled_from([*JUNK, "delete", "repeat"]) | st.integers() | st.floats() | st.text(max_size=5),
        ),
        min_size=1,
        max_size=3,
    ),
    known=st.integers(0, 12),
)
async def test_no_response_raises_anything_but_an_engines_error(
    changes: list[tuple[Any, Any]], known: int
) -> None:
    name, _, index, _ = changes[0][0]
    told = {
        "sample": copy.deepcopy(VALID[name][index % len(VALID[name])]),
        "render": rendered(),
        "derender": derendered(),
    }
    for (_, at, _, path), junk in changes:
        put(told[at], path, junk)
    speaking = Engine(
        {
            SAMPLING_PATH[name]: told["sample"],
            "chat/completions/render": told["render"],
            "chat/completions/derender": told["derender"],
        }
    )
    try:
        answer = await DIALECTS[name].ask(question(known=range(known)), OPTIONS, speaking.post)
    except MalformedAnswerError as error:
        str(error).encode()
        return
    except ValueError as error:
        if "images or audio" not in str(error):  # the prompt was rendered with features
            raise
        return
    for body in (body for _, body in speaking.posted):
        json.dumps(body)
    check(answer)


def check(answer: Any) -> None:
    """What is in the answer fits, so that nodes take it; what was asked for and is not has a reason."""
    assert Message.from_openai(answer.message.to_openai()) == answer.message
    for reason in answer.holes.values():
        reason.encode()
        assert 0 < len(reason) <= 500
    assert min(answer.prompt_tokens, answer.completion_tokens) >= 0
    assert (answer.prompt_ids is None) == (answer.sampled_ids is None)
    if answer.sampled_ids is None:
        assert answer.logprobs is answer.top_logprobs is answer.sampling_mask is answer.routing is None
        assert {"routed_experts", "sampling_mask", "top_logprobs"} <= answer.holes.keys()
        return
    sampled = answer.sampled_ids
    for field in ("routed_experts", "sampling_mask", "top_logprobs"):
        value = answer.routing if field == "routed_experts" else getattr(answer, field)
        assert (value is None) == (field in answer.holes) or not len(sampled)
    if answer.routing is not None:
        start, found = answer.routing
        assert len(found) == len(answer.prompt_ids) + len(sampled) - 1 - start
        assert found.dtype in (np.uint8, np.uint16)
    spans = [(span.start, span.end) for span in answer.weight_versions]
    assert not spans or (spans[0][0], spans[-1][1]) == (0, len(sampled))
    node = Node(
        answer.message,
        sampled,
        sampled=True,
        logprobs=answer.logprobs,
        sampling_mask=answer.sampling_mask,
        top_logprobs=answer.top_logprobs,
    )
    assert node.logprobs is not None
    assert not np.isnan(node.logprobs).any()


@pytest.mark.parametrize("name", NAMES)
async def test_deep_and_odd_messages_are_refused_in_words(name: str) -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    for odd in (deep, {"own": deep}):
        told = Engine(
            {
                SAMPLING_PATH[name]: {
                    "choices": [{"message": {"content": odd}, "text": odd, "token_ids": [1]}]
                },
                "chat/completions/render": rendered(),
                "chat/completions/derender": {"choices": [{"message": {"content": odd}}]},
            }
        )
        with pytest.raises(MalformedAnswerError):
            await DIALECTS[name].ask(question(), OPTIONS, told.post)


async def test_large_answers_are_read_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 5000
    tokens = list(range(count))
    large = vllm_chat(token_ids=tokens, routed_experts=None, weight_versions=None)
    large["usage"]["completion_tokens"] = count
    large["choices"][0]["logprobs"]["content"] = [
        {"token": f"token_id:{token}", "logprob": -1.0, "top_logprobs": []} for token in tokens
    ]
    aside = []
    original = asyncio.to_thread

    async def seen(*args: Any) -> Any:
        aside.append(args)
        return await original(*args)

    monkeypatch.setattr(asyncio, "to_thread", seen)
    answer = await ask("vllm-chat", LargeObject(large), question(logprobs=0), EngineOptions())
    assert answer.holes == {}
    assert len(aside) == 1
    await ask("vllm-chat")
    assert len(aside) == 1
