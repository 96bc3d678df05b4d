"""The simulated model writes turns as a real engine's would be, from its seeds and the conversation alone."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from env_worker.domain import Episode, Message, SamplingParams, Trace
from env_worker.model.simulated import SimulatedModel

QUESTION = Message.user("How many legs have 3 cats?")
TAGGED = Message.system("Put what you found between <answer> and </answer>.")


def new_trace() -> Trace:
    return Episode("episode", "test", {}).new_trace()


def content_of(trace: Trace) -> list[tuple[Any, ...]]:
    """Everything of a trace's nodes that does not tell the time."""
    return [
        (
            node.message,
            node.parent,
            node.token_ids.tolist(),
            node.mask.tolist(),
            node.is_content.tolist(),
            node.logprobs.tolist(),
            node.routed_experts is not None and node.routed_experts.tolist(),
            node.sampling_mask and (node.sampling_mask.ids.tolist(), node.sampling_mask.counts.tolist()),
            node.top_logprobs and (node.top_logprobs.ids.tolist(), node.top_logprobs.logprobs.tolist()),
        )
        for node in trace.nodes
    ]


async def talk(model: SimulatedModel, turns: int = 3, sampling: SamplingParams | None = None) -> Trace:
    trace = new_trace()
    parent = None
    for _ in range(turns):
        turn = await model.chat(trace, [QUESTION], parent=parent, sampling=sampling, reference="12")
        parent = turn.node
    return trace


async def test_a_turn_has_all_token_streams_and_training_arrays() -> None:
    trace = new_trace()
    turn = await SimulatedModel().chat(trace, [TAGGED, QUESTION], reference="12")
    system, user, answer = trace.nodes
    assert turn.node == 2
    assert turn.message is answer.message
    assert [node.parent for node in trace.nodes] == [None, 0, 1]
    assert not system.mask.any()
    assert not user.sampled
    assert answer.sampled
    assert answer.mask.sum() == len(answer.logprobs) == len(answer.token_ids) - 1
    assert not answer.is_content[[0, -1]].any()
    sampled_ids = answer.token_ids[answer.mask]
    for node in trace.nodes:
        assert node.routed_experts is not None
        assert node.routed_experts.shape == (len(node.token_ids), 48, 8)
        assert node.routed_experts.any(axis=(1, 2)).all()
    assert answer.sampling_mask is not None
    assert answer.top_logprobs is not None
    starts = np.cumsum(answer.sampling_mask.counts) - answer.sampling_mask.counts
    assert (answer.sampling_mask.ids[starts] == sampled_ids).all()
    assert (answer.top_logprobs.ids.reshape(len(sampled_ids), -1)[:, 0] == sampled_ids).all()


async def test_its_call_says_that_it_is_simulated() -> None:
    trace = await talk(SimulatedModel(), turns=2)
    assert [(call.model, call.simulated, call.finish_reason) for call in trace.calls] == [
        ("simulated", True, "stop")
    ] * 2
    second = trace.calls[1]
    assert second.node == 3
    assert second.prompt_tokens + second.completion_tokens == len(trace.token_ids(3))
    assert SimulatedModel().name == "simulated"
    assert SimulatedModel().simulated


async def test_equal_seeds_give_equal_episodes_and_other_seeds_do_not() -> None:
    first = content_of(await talk(SimulatedModel(seed=1)))
    assert first == content_of(await talk(SimulatedModel(seed=1)))
    assert first != content_of(await talk(SimulatedModel(seed=2)))
    assert first != content_of(await talk(SimulatedModel(seed=1), sampling=SamplingParams(seed=9)))


async def test_runs_side_by_side_do_not_change_each_other() -> None:
    model = SimulatedModel(seed=4)
    alone = content_of(await talk(model))
    async with asyncio.TaskGroup() as group:
        runs = [group.create_task(talk(model)) for _ in range(5)]
    assert all(content_of(run.result()) == alone for run in runs)


async def test_it_is_right_at_its_rate() -> None:
    model = SimulatedModel(accuracy=0.6)
    right = 0
    for index in range(400):
        trace = new_trace()
        turn = await model.chat(trace, [Message.user(f"question {index}")], reference="12")
        right += turn.message.text == "12"
    assert 0.5 < right / 400 < 0.7


@pytest.mark.parametrize(("accuracy", "right"), [(1.0, True), (0.0, False)])
async def test_it_is_always_or_never_right_when_told_so(accuracy: float, right: bool) -> None:
    turn = await SimulatedModel(accuracy=accuracy).chat(new_trace(), [TAGGED, QUESTION], reference="12")
    assert (turn.message.text == "<answer>12</answer>") is right
    assert turn.message.text.startswith("<answer>")


async def test_the_last_routing_row_is_repaired_by_the_next_turn_alike_on_every_branch() -> None:
    model = SimulatedModel()
    trace = new_trace()
    first = await model.chat(trace, [QUESTION], reference="12")
    before = trace.nodes[first.node].routed_experts
    assert before is not None
    assert (before[-1] == before[-2]).all()
    await model.chat(trace, [Message.user("again")], parent=first.node)
    repaired = trace.nodes[first.node].routed_experts
    assert repaired is not None
    assert (repaired[:-1] == before[:-1]).all()
    assert (repaired[-1] != before[-1]).any()
    await model.chat(trace, [Message.user("or otherwise")], parent=first.node)
    again = trace.nodes[first.node].routed_experts
    assert again is not None
    assert np.array_equal(again, repaired)
    assert len(trace.branches()) == 2


async def test_pending_shows_the_question_until_the_answer_has_landed() -> None:
    trace = new_trace()
    asking = asyncio.ensure_future(SimulatedModel().chat(trace, [QUESTION]))
    await asyncio.sleep(0)
    assert trace.pending is not None
    assert trace.pending.messages == (QUESTION,)
    await asking
    assert trace.pending is None


async def test_a_cancelled_turn_leaves_no_pending_and_a_failed_call() -> None:
    trace = new_trace()
    asking = asyncio.ensure_future(SimulatedModel(token_seconds=60).chat(trace, [QUESTION]))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert trace.pending is None
    assert not trace.nodes
    assert trace.calls[0].error is not None
    assert trace.calls[0].error.type == "CancelledError"


@pytest.mark.parametrize("max_tokens", [1, 2, 10])
async def test_max_tokens_cuts_the_answer(max_tokens: int) -> None:
    trace = await talk(SimulatedModel(), turns=1, sampling=SamplingParams(max_tokens=max_tokens))
    assert len(trace.nodes[1].logprobs) == max_tokens
    assert trace.calls[0].finish_reason == "length"
    assert trace.calls[0].completion_tokens == max_tokens


async def test_arrays_can_be_left_out_and_the_head_follows_the_sampling() -> None:
    bare = await talk(SimulatedModel(layers=0, mask_width=0, head_width=0), turns=2)
    assert bare.array_bytes == 0
    wide = await talk(SimulatedModel(), turns=1, sampling=SamplingParams(logprobs=7))
    assert wide.nodes[1].top_logprobs is not None
    assert set(wide.nodes[1].top_logprobs.counts.tolist()) == {7}


async def test_tools_are_recorded_once() -> None:
    trace = new_trace()
    tools = [{"type": "function", "function": {"name": "lookup"}}]
    turn = await SimulatedModel().chat(trace, [QUESTION], tools=tools)
    await SimulatedModel().chat(trace, [QUESTION], parent=turn.node, tools=tools)
    assert "lookup" in trace.tools_json
    assert sum(type(entry).__name__ == "ToolsSet" for entry in trace.journal.entries) == 1


async def test_nothing_to_answer_and_a_foreign_parent_are_refused() -> None:
    with pytest.raises(ValueError, match="no message to answer"):
        await SimulatedModel().chat(new_trace(), [])
    with pytest.raises(ValueError, match="7"):
        await SimulatedModel().chat(new_trace(), [QUESTION], parent=7)


@pytest.mark.parametrize(
    "parameters",
    [
        {"accuracy": 1.1},
        {"accuracy": float("nan")},
        {"seed": -1},
        {"top_k": 129},
        {"experts": 1},
        {"layers": 513},
    ],
)
def test_parameters_out_of_range_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(parameters))} of the simulated model is"):
        SimulatedModel(**parameters)
