"""An engine as the model of a run: its turns in the trace, and what they lack."""

from __future__ import annotations

import asyncio
import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from env_worker.domain import Episode, Message, SamplingParams
from env_worker.model.dialects.base import EngineOptions
from env_worker.model.engine import Engine
from env_worker.model.engine_model import EngineModel
from env_worker.model.http import close_clients
from tests.engine import (
    OPENAI,
    SGLANG_0_5_23,
    VLLM_0_33,
    Quirk,
    Reply,
    ScriptedEngine,
    Served,
    by_turn,
    expected_ids,
    expected_logprobs,
    held,
)
from tests.helpers.engine_models import QUESTION, ROUTED, active, model_of, new_trace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from env_worker.model.base import ModelClient


@pytest.fixture(autouse=True)
async def connections() -> AsyncIterator[None]:
    yield
    await close_clients()


TOOL = {"type": "function", "function": {"name": "count", "parameters": {"type": "object"}}}

# Turns.


async def test_a_turn_stands_in_the_trace_as_the_engine_saw_it() -> None:
    trace = new_trace()
    async with ScriptedEngine(reply=["Twelve 🐾"]) as engine:
        model: ModelClient = model_of(engine)
        turn = await model.chat(trace, [Message.system("Count."), QUESTION])
        url = engine.url
    system, user, answer = trace.nodes
    assert (model.name, model.simulated) == ("scripted", False)
    assert turn.node == 2
    assert turn.message == answer.message
    assert turn.message.text == "Twelve 🐾"
    assert turn.finish_reason == "stop"
    prompt = expected_ids([system.message.to_openai(), user.message.to_openai()])
    assert trace.token_ids(1).tolist() == prompt.tolist()
    assert not user.mask.any()
    assert answer.mask.all()
    np.testing.assert_allclose(answer.logprobs, expected_logprobs(len(answer.token_ids)), rtol=1e-6)
    assert answer.routed_experts is not None
    assert trace.pending is None
    (call,) = trace.calls
    assert (call.node, call.attempt, call.error) == (2, 1, None)
    assert (call.model, call.dialect) == ("scripted", "vllm-chat")
    assert call.endpoint == f"{url}/chat/completions"
    assert (call.prompt_tokens, call.completion_tokens) == (len(prompt), len(answer.token_ids))
    assert call.finish_reason == "stop"
    assert [span.version for span in call.weight_versions] == ["default"]
    assert call.duration_seconds > 0
    assert dict(trace.info) == {"engine": {"dialect": "vllm-chat", "logprobs_mode": "raw"}}


@pytest.mark.parametrize(
    ("dialect", "profile", "endpoint"),
    [
        ("openai-chat", OPENAI, "/v1/chat/completions"),
        ("vllm-chat", VLLM_0_33, "/v1/chat/completions"),
        ("vllm-completions", VLLM_0_33, "/v1/completions"),
        ("vllm-generate", VLLM_0_33, "/inference/v1/generate"),
        ("sglang-chat", SGLANG_0_5_23, "/v1/chat/completions"),
    ],
)
async def test_every_dialect_converses_over_http(dialect: str, profile: Any, endpoint: str) -> None:
    trace = new_trace()
    async with ScriptedEngine(profile, by_turn("one ☝", "two ✌")) as engine:
        model = model_of(engine, dialect, options=EngineOptions())
        first = await model.chat(trace, [QUESTION])
        second = await model.chat(trace, [Message.user("And?")], parent=first.node)
        root = engine.root
    assert [first.message.text, second.message.text] == ["one ☝", "two ✌"]
    assert [node.parent for node in trace.nodes] == [None, 0, 1, 2]
    assert [(call.node, call.endpoint, call.attempt) for call in trace.calls] == [
        (1, root + endpoint, 1),
        (3, root + endpoint, 1),
    ]


async def test_a_conversation_has_an_id_that_is_its_own_and_tells_nothing() -> None:
    async with ScriptedEngine() as engine:
        first, second = model_of(engine), model_of(engine)
        episode = Episode("episode", "test", {}, "request-id")
        one, other = episode.new_trace(), episode.new_trace()
        turn = await first.chat(one, [QUESTION])
        await first.chat(one, [QUESTION], parent=turn.node)
        await first.chat(other, [QUESTION])
        await second.chat(one, [QUESTION])
        ids = [request.body["session_id"] for request in engine.requests]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3
    assert not any(known in id for known in ("request-id", "episode", one.id) for id in ids)


async def test_tools_and_sampling_are_asked_for_and_tools_are_noted() -> None:
    trace = new_trace()
    async with ScriptedEngine(reply=[Reply(calls=(("count", '{"legs": 4, "broken'),))]) as engine:
        sampling = SamplingParams(temperature=0.5, extra={"priority": 0})
        turn = await model_of(engine).chat(trace, [QUESTION], tools=[TOOL], sampling=sampling)
        (request,) = engine.requests
    assert json.loads(trace.tools_json) == request.body["tools"] == [TOOL]
    assert (request.body["temperature"], request.body["priority"]) == (0.5, 0)
    assert [call.arguments for call in turn.message.tool_calls] == ['{"legs": 4, "broken']


async def test_what_is_being_asked_is_pending_meanwhile() -> None:
    trace = new_trace()
    async with ScriptedEngine(faults=[held()]) as engine:
        asking = asyncio.create_task(model_of(engine).chat(trace, [QUESTION]))
        await active(engine, 1)
        assert trace.pending is not None
        assert trace.pending.messages == (QUESTION,)
        assert not trace.nodes
        engine.gate().set()
        await asking
    assert trace.pending is None


async def test_branches_of_a_trace_may_be_asked_at_once() -> None:
    trace = new_trace()
    async with ScriptedEngine() as engine:
        model = model_of(engine)
        root = await model.chat(trace, [QUESTION])
        engine.fail(*(held(f"gate-{i}") for i in range(8)))
        asked = [
            asyncio.create_task(model.chat(trace, [Message.user(f"branch {i}")], parent=root.node))
            for i in range(8)
        ]
        await active(engine, 8)
        for left, i in zip(range(7, -1, -1), (3, 0, 7, 1, 2, 6, 4, 5), strict=True):  # in another order
            engine.gate(f"gate-{i}").set()
            await active(engine, left)
        turns = await asyncio.gather(*asked)
    for i, turn in enumerate(turns):
        assert turn.message.text == f"turn 1: branch {i}"
        path = trace.path(turn.node)
        assert [trace.nodes[index].message.text for index in path][2:3] == [f"branch {i}"]
        prompt = expected_ids([trace.nodes[index].message.to_openai() for index in path[:-1]])
        assert trace.token_ids(turn.node)[: len(prompt)].tolist() == prompt.tolist()
        assert all(trace.nodes[index].routed_experts is not None for index in path)
    assert sorted(call.node or 0 for call in trace.calls) == sorted(
        [root.node, *(turn.node for turn in turns)]
    )
    assert trace.pending is None


# What is absent.


async def test_what_was_asked_for_and_is_absent_is_told_with_its_reason() -> None:
    trace = new_trace()
    replies = [
        Reply("fine"),
        Reply("bad", quirks=frozenset({Quirk.ROUTING_SHORT})),
        Reply("worse", quirks=frozenset({Quirk.ROUTING_ZERO, Quirk.LOGPROB_NULL})),
        Reply("fine again"),
    ]
    async with ScriptedEngine(reply=replies) as engine:
        model, node = model_of(engine), None
        nodes = []
        for i in range(4):
            turn = await model.chat(trace, [Message.user(f"question {i}")], parent=node)
            nodes.append(node := turn.node)
    told = trace.info["incomplete"]
    assert set(told) == {"routed_experts", "logprobs"}
    assert (told["routed_experts"]["turns"], told["routed_experts"]["first_node"]) == (2, nodes[1])
    assert told["routed_experts"]["reason"] == trace.nodes[nodes[1]].holes["routed_experts"]
    assert (told["logprobs"]["turns"], told["logprobs"]["first_node"]) == (1, nodes[2])
    assert [sorted(trace.nodes[index].holes) for index in nodes] == [
        [],
        ["routed_experts"],
        ["logprobs", "routed_experts"],
        [],
    ]
    assert trace.nodes[nodes[3]].routed_experts is not None
    assert trace.nodes[nodes[2]].token_ids.size


async def test_a_hole_whose_rows_come_with_a_later_turn_is_told_no_more() -> None:
    """The template rendered history anew when only the newest rows were asked for."""
    trace = new_trace()
    async with ScriptedEngine(
        reply=[Reply(text) for text in ("1", "2", " so so ", "4", "5")], served=Served(retokenize=True)
    ) as engine:
        model, node, told = model_of(engine), None, []
        for i in range(5):
            turn = await model.chat(trace, [Message.user(f"question {i}")], parent=node)
            told.append(trace.info.get("incomplete", {}))
            node = turn.node
    assert told[:3] == [{}, {}, {}]
    assert told[3]["routed_experts"]["turns"] == 1
    assert told[4] == {}
    assert not any(node.holes for node in trace.nodes)


async def test_an_engine_that_was_not_started_for_it_has_none() -> None:
    trace = new_trace()
    async with ScriptedEngine(served=Served(routed_experts=False)) as engine:
        turn = await model_of(engine).chat(trace, [QUESTION])
    assert trace.info["incomplete"]["routed_experts"]["turns"] == 1
    assert trace.nodes[turn.node].routed_experts is None


# A run in another process.


async def test_it_can_be_pickled_and_goes_on_with_its_conversation() -> None:
    trace = new_trace()
    async with ScriptedEngine() as engine:
        engine_of = Engine(engine.url, "scripted", "vllm-chat", {"X-Run": "1"}, "")
        model = EngineModel(engine_of, ROUTED, timeout_seconds=7.0, retries=1)
        again = pickle.loads(pickle.dumps(model))
        assert again == model
        first = await model.chat(trace, [QUESTION])
        await again.chat(trace, [QUESTION], parent=first.node)
        one, other = engine.requests
    assert one.body["session_id"] == other.body["session_id"]
    for request in (one, other):
        assert {name.lower(): value for name, value in request.headers.items()}["x-run"] == "1"
