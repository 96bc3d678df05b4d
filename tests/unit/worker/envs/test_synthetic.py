"""The synthetic environment makes what its task asks for, the same each time, or refuses the task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env_worker.domain import Episode, InvalidTaskError, SamplingParams
from env_worker.envs.base import Context, Environment
from env_worker.envs.synthetic import SyntheticEnvironment, SyntheticFailureError
from env_worker.envs.synthetic_task import SyntheticTask
from env_worker.model.simulated import SimulatedModel


async def play(task: dict[str, Any], episode: Episode | None = None) -> Episode:
    episode = episode or Episode("episode", "synthetic", task)
    await SyntheticEnvironment().run(Context("run", task, SamplingParams(), SimulatedModel(), episode))
    return episode


def content_of(episode: Episode) -> list[tuple[Any, ...]]:
    """Everything of an episode that does not tell the time."""
    (trace,) = episode.traces
    nodes: list[tuple[Any, ...]] = []
    for node in trace.nodes:
        mask, head = node.sampling_mask, node.top_logprobs
        nodes.append(
            (
                node.message,
                node.parent,
                node.sampled,
                node.token_ids.tolist(),
                node.mask.tolist(),
                node.is_content.tolist(),
                node.logprobs.tolist(),
                node.routed_experts is not None and node.routed_experts.tolist(),
                mask is not None and (mask.ids.tolist(), mask.counts.tolist()),
                head is not None and (head.ids.tolist(), head.logprobs.tolist(), head.counts.tolist()),
            )
        )
    calls = [(call.node, call.prompt_tokens, call.completion_tokens) for call in trace.calls]
    return [*nodes, *calls, (dict(trace.rewards), dict(trace.metrics))]


async def test_the_defaults_give_ten_turns_with_all_arrays() -> None:
    episode = await play({})
    (trace,) = episode.traces
    assert len(trace.nodes) == 20
    assert sum(len(node.token_ids) for node in trace.nodes) == 10 * 200
    assert trace.branches() == [tuple(range(20))]
    assert all(call.simulated and call.model == "simulated" for call in trace.calls)
    for node in trace.nodes:
        assert node.routed_experts is not None
        assert node.routed_experts.shape == (len(node.token_ids), 4, 2)
        assert (node.sampling_mask is not None) is node.sampled
        assert (node.top_logprobs is not None) is node.sampled
    assert trace.stop_condition == "completed"
    assert trace.finished_at is not None
    assert trace.pending is None
    assert trace.reward is not None
    assert 0 <= trace.reward < 1
    assert dict(trace.metrics) == {"turns": 10.0, "tokens": 2000.0}


@settings(max_examples=30)
@given(
    turns=st.integers(1, 8),
    tokens=st.integers(1, 12),
    layers=st.integers(0, 3),
    top_k=st.integers(1, 64),
    branches=st.integers(1, 8),
    seed=st.integers(0, 2**63 - 1),
)
async def test_any_shape(turns: int, tokens: int, layers: int, top_k: int, branches: int, seed: int) -> None:
    branches = min(branches, turns)
    task = {"turns": turns, "tokens_per_turn": tokens, "layers": layers, "top_k": top_k}
    episode = await play({**task, "branches": branches, "seed": seed})
    (trace,) = episode.traces
    assert len(trace.nodes) == 2 * turns
    assert sum(len(node.token_ids) for node in trace.nodes) == turns * tokens
    paths = trace.branches()
    assert len(paths) == branches
    assert {path[0] for path in paths} == {0}
    for call in trace.calls:
        assert call.node is not None
        assert call.prompt_tokens + call.completion_tokens == len(trace.token_ids(call.node))
        assert call.completion_tokens == len(trace.nodes[call.node].logprobs) >= 1
    assert (episode.array_bytes > 0) is (layers > 0)


async def test_one_seed_gives_one_episode() -> None:
    task = {"turns": 4, "tokens_per_turn": 30, "branches": 2, "seed": 5}
    first = content_of(await play(task))
    assert first == content_of(await play(task))
    assert first != content_of(await play({**task, "seed": 6}))


async def test_what_streams_does_not_depend_on_the_arrays() -> None:
    with_arrays = await play({"turns": 4, "seed": 5})
    without = await play({"turns": 4, "seed": 5, "layers": 0})
    (kept,), (bare,) = with_arrays.traces, without.traces
    assert with_arrays.array_bytes > without.array_bytes == 0
    for one, other in zip(kept.nodes, bare.nodes, strict=True):
        assert one.message == other.message
        for name in ("token_ids", "mask", "is_content", "logprobs"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert kept.rewards == bare.rewards


async def test_a_large_turn_made_in_a_thread_follows_the_seed_too() -> None:
    task = {"turns": 2, "tokens_per_turn": 4000, "layers": 150, "top_k": 8}
    one, two = (await play(task)).traces[0], (await play(task)).traces[0]
    for left, right in zip(one.nodes, two.nodes, strict=True):
        assert left.routed_experts is not None
        assert right.routed_experts is not None
        assert np.array_equal(left.routed_experts, right.routed_experts)


async def test_tool_results_answer_the_calls_before_them() -> None:
    (trace,) = (await play({"turns": 6, "branches": 2})).traces
    results = [node for node in trace.nodes if node.message.role == "tool"]
    assert results
    for node in results:
        assert node.parent is not None
        asked = trace.nodes[node.parent].message.tool_calls
        assert [call.id for call in asked] == [node.message.tool_call_id]


@pytest.mark.parametrize("fail_at_turn", [0, 2, 4])
async def test_it_fails_after_so_many_complete_turns(fail_at_turn: int) -> None:
    episode = Episode("episode", "synthetic", {})
    with pytest.raises(SyntheticFailureError):
        await play({"turns": 4, "fail_at_turn": fail_at_turn}, episode)
    (trace,) = episode.traces
    assert len(trace.nodes) == 2 * fail_at_turn
    assert trace.reward is None
    assert trace.pending is None
    failed = [call for call in trace.calls if call.error is not None]
    assert len(failed) == (fail_at_turn < 4)


@pytest.mark.parametrize(
    ("task", "named"),
    [
        ({"turn": 3}, r"'turn' is unknown \(did you mean 'turns'\?\)"),
        ({"turns": 0}, "'turns' is 0, but must be between 1 and 10000"),
        ({"turns": 10_001}, "'turns' is 10001"),
        ({"turns": True}, r"'turns' is True \(bool\)"),
        ({"turns": 2.0}, r"'turns' is 2.0 \(float\)"),
        ({"turns": 10**5000}, "'turns' is a int too long to print"),
        ({"tokens_per_turn": -1}, "'tokens_per_turn' is -1"),
        ({"layers": 513}, "'layers' is 513, but must be between 0 and 512"),
        ({"top_k": 65}, "'top_k' is 65, but must be between 1 and 64"),
        ({"turn_seconds": float("nan")}, "'turn_seconds' is nan"),
        ({"turn_seconds": "1"}, r"'turn_seconds' is '1' \(str\)"),
        ({"seed": -1}, "'seed' is -1"),
        ({"seed": None}, "'seed' is None"),
        ({"turns": 2, "branches": 3}, "'branches' is 3, but must be between 1 and 2"),
        ({"fail_at_turn": 11}, "'fail_at_turn' is 11, but must be between 0 and 10"),
        ({"turns": 10_000, "tokens_per_turn": 1_000_000}, "10000000000, but at most 100000000 tokens"),
        ({"turns": 100, "tokens_per_turn": 10_000, "layers": 512, "top_k": 64}, "arrays would take"),
    ],
)
async def test_a_bad_task_is_refused_before_the_first_trace(task: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidTaskError, match=named):
        SyntheticEnvironment().validate(task)
    episode = Episode("episode", "synthetic", task)
    with pytest.raises(InvalidTaskError):
        await play(task, episode)
    assert not episode.traces


def test_what_is_accepted() -> None:
    SyntheticEnvironment().validate({"turn_seconds": 1, "fail_at_turn": None})
    assert SyntheticTask.from_json({"layers": 0}).turn_array_bytes == 0
    assert isinstance(SyntheticEnvironment(), Environment)
