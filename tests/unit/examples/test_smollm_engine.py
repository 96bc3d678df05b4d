"""The example's engine, read by the worker's own dialects; the model is a tiny one that tests script."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from env_worker.domain import Episode, Message, SamplingParams
from env_worker.model.dialects.base import EngineOptions
from env_worker.model.engine import Engine
from env_worker.model.engine_model import EngineModel
from env_worker.model.errors import EngineRefusedError
from env_worker.model.http import close_clients
from examples.smollm.asked import RefusedError
from examples.smollm.generation import Wanted, generate
from examples.smollm.sampling import Sampling
from examples.smollm.server import Turns, application
from tests.unit.examples.tiny_model import END, TinyModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from env_worker.domain import Trace

SAMPLING = SamplingParams(temperature=0.5, top_k=12, top_p=0.9999, logprobs=4, seed=1)
ARRAYS = frozenset({"top_logprobs", "sampling_mask"})
GREETING = "Zwölf 🐾 – fine"


@asynccontextmanager
async def served(model: TinyModel) -> AsyncIterator[str]:
    runner = web.AppRunner(
        application(model, name="tiny"), handler_cancellation=True, access_log=None, shutdown_timeout=0.1
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await close_clients()
        await runner.cleanup()


def asked(root: str, dialect: str, arrays: frozenset[str] = ARRAYS) -> EngineModel:
    return EngineModel(Engine(f"{root}/v1", "tiny", dialect), EngineOptions(arrays), retries=0)


def new_trace() -> Trace:
    return Episode("0" * 32, "tiny", {}).new_trace()


async def post(root: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as session, session.post(root + path, json=body) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("dialect", ["vllm-generate", "vllm-chat"])
async def test_two_turns_have_all_that_the_engine_was_asked_for(dialect: str) -> None:
    model, trace = TinyModel(GREETING), new_trace()
    async with served(model) as root:
        masks = ARRAYS if dialect == "vllm-generate" else frozenset({"top_logprobs"})
        client = asked(root, dialect, masks)
        first = await client.chat(trace, [Message.system("Be 🐾."), Message.user("?")], sampling=SAMPLING)
        await client.chat(trace, [Message.user("Again")], parent=first.node, sampling=SAMPLING)
    assert [node.message.text for node in trace.nodes if node.sampled] == [GREETING] * 2
    assert "incomplete" not in trace.info
    conversation = [{"role": node.message.role, "content": node.message.text} for node in trace.nodes[:-1]]
    seen = [*model.render(conversation), *GREETING.encode(), END]
    assert trace.token_ids(len(trace.nodes) - 1).tolist() == seen
    assert trace.calls[1].cached_tokens == trace.calls[0].prompt_tokens + len(GREETING.encode())
    for node in trace.nodes:
        if not node.sampled:
            continue
        sampled = node.token_ids[node.mask]
        heads = node.top_logprobs
        assert heads is not None
        starts = np.cumsum(heads.counts) - heads.counts
        assert heads.ids[starts].tolist() == sampled.tolist()
        assert heads.logprobs[starts].tolist() == node.logprobs.tolist()
        if dialect == "vllm-generate":
            assert node.sampling_mask is not None
            assert (node.sampling_mask.counts <= 12).all()


async def test_what_it_cannot_give_is_a_hole_with_a_reason() -> None:
    trace = new_trace()
    async with served(TinyModel("x")) as root:
        wanted = ARRAYS | {"routed_experts"}
        await asked(root, "vllm-generate", wanted).chat(
            trace, [Message.user("?")], sampling=SamplingParams(logprobs=1)
        )
    assert set(trace.info["incomplete"]) == {"routed_experts", "sampling_mask"}


@pytest.mark.parametrize(
    ("sampling", "text", "finish"),
    [
        (SamplingParams(temperature=0, max_tokens=3), "Zw\ufffd", "length"),
        (SamplingParams(temperature=0, stop=("🐾",)), "Zwölf ", "stop"),
        (SamplingParams(temperature=0, stop=("fine", "f 🐾")), "Zwöl", "stop"),
        (SamplingParams(temperature=0, extra={"stop_token_ids": [ord("l")]}), "Zwöl", "stop"),
    ],
)
@pytest.mark.parametrize("dialect", ["vllm-generate", "vllm-chat"])
async def test_an_answer_ends_where_it_was_told_to(
    dialect: str, sampling: SamplingParams, text: str, finish: str
) -> None:
    trace = new_trace()
    async with served(TinyModel(GREETING)) as root:
        turn = await asked(root, dialect, frozenset()).chat(trace, [Message.user("?")], sampling=sampling)
    assert (turn.message.text, turn.finish_reason) == (text, finish)


async def test_generate_answers_in_each_mode() -> None:
    body = {"token_ids": [1, 2], "sampling_params": {"temperature": 0, "logprobs": 1}}
    async with served(TinyModel("hi")) as root:
        for mode, key, value in (
            ("text", "text", "hi"),
            ("derender", "message", {"role": "assistant", "content": "hi"}),
        ):
            status, answer = await post(root, "/inference/v1/generate", {**body, "output_mode": mode})
            assert (status, answer["output_mode"]) == (200, mode)
            (choice,) = answer["choices"]
            assert choice[key] == value
            assert choice["token_ids"] == [*b"hi", END]
            assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["h", "i", ""]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"stream": True}, "stream"),
        ({"n": 2}, "n is 2"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"temperature": -1}, "temperature"),
        ({"top_k": 5000}, "top_k"),
        ({"top_p": "all"}, "top_p"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "logprobs is not true"),
        ({"stop": [""]}, "stop"),
        ({"stop_token_ids": [258]}, "stop_token_ids"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "3"}]}, "tool"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text alone"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "surrogate"),
        ({"messages": [{"role": "user", "content": "x" * 400}]}, "maximum context length is 400"),
        ([], "expected an object"),
    ],
)
async def test_what_it_cannot_do_is_refused_with_words(body: Any, word: str) -> None:
    if isinstance(body, dict):
        body = {"messages": [{"role": "user", "content": "?"}], **body}
    async with served(TinyModel("x")) as root:
        status, answer = await post(root, "/v1/chat/completions", body)
    assert status == 400
    assert word in answer["error"]["message"]


async def test_another_model_is_not_there() -> None:
    async with served(TinyModel("x")) as root:
        model = EngineModel(Engine(f"{root}/v1", "huge", "vllm-generate"), retries=0)
        with pytest.raises(EngineRefusedError, match="no model 'huge', only 'tiny'"):
            await model.chat(new_trace(), [Message.user("?")])


async def test_a_request_that_is_closed_leaves_the_model_to_the_next() -> None:
    begun = threading.Event()
    model = TinyModel(endless=True, between=begun.set)
    model.context = 1 << 30
    async with served(model) as root:
        body: dict[str, Any] = {"token_ids": [1], "sampling_params": {"temperature": 0}}
        endless = asyncio.create_task(post(root, "/inference/v1/generate", body))
        assert await asyncio.to_thread(begun.wait, 30)
        endless.cancel()
        body["sampling_params"] = {"max_tokens": 1}
        status, _ = await asyncio.wait_for(post(root, "/inference/v1/generate", body), 30)
    assert status == 200


async def test_no_more_wait_than_may() -> None:
    begun, gate = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        gate.wait(30)

    model = TinyModel("a long answer", between=hold)
    turns = Turns(model, most_waiting=1)
    wanted = Wanted((1, 2), 100, Sampling(temperature=0))
    first = asyncio.create_task(turns.generate(wanted))
    assert await asyncio.to_thread(begun.wait, 30)
    second = asyncio.create_task(turns.generate(wanted))
    await asyncio.sleep(0)
    with pytest.raises(RefusedError, match="1 requests wait for the model already"):
        await turns.generate(wanted)
    second.cancel()
    await asyncio.wait([second])
    third = asyncio.create_task(turns.generate(wanted))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    gate.set()
    assert len((await third).draws) == len("a long answer") + 1
    assert [first.cancelled(), second.cancelled()] == [True, True]
    # The first one's prompt, at which it was held, and then the third one alone.
    assert model.fed[:2] == [[1, 2], [2]]
    turns.close()


def test_a_prompt_is_fed_in_batches_and_known_tokens_are_not() -> None:
    model = TinyModel("x")
    prompt = tuple(index % 256 for index in range(300))
    generate(model, Wanted(prompt, 1, Sampling()), lambda: False)
    assert list(map(len, model.fed)) == [256, 44]
    again = generate(model, Wanted(prompt, 1, Sampling()), lambda: False)
    assert again.known == 299
    assert list(map(len, model.fed)) == [256, 44, 1]
