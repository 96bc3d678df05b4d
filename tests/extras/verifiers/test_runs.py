"""verifiers' environments through a real worker and broker, with the client that any engine answers."""

from __future__ import annotations

import glob
import json
from typing import TYPE_CHECKING

import pytest
from envtrio.v1.episode_pb2 import Role

from env_client import EnvError
from tests.extras.verifiers.stage import mark_of

if TYPE_CHECKING:
    from envtrio.v1.delta_pb2 import TraceDelta
    from envtrio.v1.episode_pb2 import Message, Trace

    from tests.extras.verifiers.stage import Stage

pytestmark = pytest.mark.timeout(170)


def role(message: Message) -> str:
    return Role.Name(message.role).removeprefix("ROLE_").lower()


def roles(trace: Trace) -> list[str]:
    return [role(node.message) for node in trace.nodes]


def texts(trace: Trace, of: str) -> list[str]:
    return [node.message.content[0].text for node in trace.nodes if role(node.message) == of]


async def test_tools_turn_by_turn_with_previews(pool: Stage) -> None:
    previews: list[list[str]] = []
    turns: list[int] = []

    def on_delta(delta: TraceDelta) -> None:
        if delta.HasField("pending"):
            previews.append([role(message) for message in delta.pending.messages])
            if previews[-1]:
                pool.engine.gate.release()  # so it was seen before the engine has answered
        turns.append(sum(node.sampled for node in delta.append.nodes))

    sampling = {"temperature": 1.0, "max_tokens": 64}
    episode = await pool.client.run(
        {"index": 1}, env="calc", model="gate", sampling=sampling, on_delta=on_delta
    )
    [trace] = episode.traces
    assert roles(trace) == ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert texts(trace, "tool") == ["5", "12"]
    assert "\U0001f914" in trace.nodes[2].message.content[0].text
    assert trace.nodes[2].message.tool_calls[0].name == "calc_add"
    assert {tool["function"]["name"] for tool in json.loads(trace.tools_json)} == {"calc_add", "calc_slow"}
    assert [call.node for call in trace.calls] == [2, 4, 6]
    assert [call.prompt_tokens for call in trace.calls] == [20, 40, 60]
    assert {call.endpoint for call in trace.calls} == {f"{pool.engine.url}/chat/completions"}
    # i=1: the right answer is 13, the engine says 12. A reward that was earned, of zero.
    assert (trace.rewards["exact"].value, trace.rewards["exact"].weight) == (0.0, 2.0)
    assert trace.metrics["turns"] == 3.0
    assert (trace.ok, trace.stop_condition, episode.head.ok) == (True, "agent_completed", True)
    assert json.loads(trace.info_json["verifiers"])["task"]["idx"] == 1
    assert [one for one in previews if one] == [["system", "user"], ["tool"], ["tool"]]
    assert (sum(turns), max(turns)) == (3, 1), "not turn by turn"
    # A run's name follows the mark; without one it is that of a server for all runs, which goes on.
    assert glob.glob(f"/tmp/vf-port-*{mark_of(pool.worker)}?*") == []


async def test_user_sim_has_two_agents_of_which_one_is_trained(pool: Stage) -> None:
    episode = await pool.client.run({"index": 0}, env="user-sim")
    traces = {trace.header.agent: trace for trace in episode.traces}
    assert {name: trace.header.trainable for name, trace in traces.items()} == {
        "assistant": True,
        "user": False,
    }
    assert all(trace.ok and trace.nodes for trace in traces.values())
    assert episode.head.ok


async def test_best_of_n_and_what_is_said_after_the_agents_have_ended(pool: Stage) -> None:
    episode = await pool.client.run({"index": 2}, env="best-of-n")
    assert len(episode.traces) == 2
    assert all("right" in trace.rewards for trace in episode.traces)
    assert any("pass_at" in name or "best" in name for trace in episode.traces for name in
               (*trace.rewards, *trace.metrics)), episode.traces[0].metrics  # fmt: skip


async def test_a_task_is_its_data_or_its_place(pool: Stage) -> None:
    data = {"idx": 7, "prompt": "I want the number 7", "answer": "no such answer"}
    [trace] = (await pool.client.run(data, env="plain")).traces
    assert trace.rewards["right"].value == 0.0
    assert json.loads(trace.info_json["seen"]) == {"idx": 7}
    for task, words in (
        ({"index": -1}, "index.*-1.*between 0 and"),
        ({"index": "first"}, "index.*first.*integer"),
        ({"prompt": "x", "answr": "12"}, "answr.*did you mean 'answer'"),
        ({"prompt": "x", "answer": 12}, "answer.*12.*string"),
        ({}, "empty"),
    ):
        with pytest.raises(EnvError, match=words) as refused:
            await pool.client.run(task, env="plain")
        assert refused.value.reason == "INVALID_TASK"
    with pytest.raises(EnvError, match="has 3 tasks"):
        await pool.client.run({"index": 3}, env="calc")


async def test_without_an_engine_it_says_so(pool: Stage) -> None:
    with pytest.raises(EnvError, match="give the run an endpoint"):
        await pool.client.run({"index": 0}, env="plain", model="simulated")


@pytest.mark.parametrize("fault", ["setup", "reward"])
async def test_a_failing_task_is_the_environments_fault_and_no_zero(pool: Stage, fault: str) -> None:
    episode = await pool.client.run({"prompt": "x", "answer": "done", "fault": fault}, env="plain")
    [trace] = episode.traces
    assert (episode.head.ok, trace.ok) == (False, False)
    assert [(error.type, error.phase) for error in episode.head.errors] == [("TaskError", "environment")]
    assert "right" not in trace.rewards or not trace.rewards["right"].HasField("value")


async def test_a_failing_engine_is_the_models_fault_and_no_zero(pool: Stage) -> None:
    pool.engine.downs = 100
    try:
        episode = await pool.client.run({"index": 0}, env="plain", model="down")
    finally:
        pool.engine.downs = 0
    [trace] = episode.traces
    assert (episode.head.ok, trace.ok, trace.stop_condition) == (False, False, "provider_error")
    assert {(error.type, error.phase) for error in episode.head.errors} == {("ProviderError", "model")}
    assert "503" in episode.head.errors[0].message
    assert [call.attempt for call in trace.calls] == list(range(1, len(trace.calls) + 1))
    assert all(call.error.phase == "model" and not call.HasField("node") for call in trace.calls)
    assert not any(reward.HasField("value") for reward in trace.rewards.values())


async def test_an_agent_is_tried_again(pool: Stage) -> None:
    """The SDK in the harness tries three times; then verifiers runs the agent again."""
    pool.engine.downs = 4
    discarded: list[str] = []
    opened: list[str] = []

    def on_delta(delta: TraceDelta) -> None:
        if delta.discard:
            discarded.append(delta.trace_id)
        elif delta.trace_id not in opened:
            opened.append(delta.trace_id)

    episode = await pool.client.run({"index": 0}, env="agent-retries", model="down", on_delta=on_delta)
    [trace] = episode.traces
    assert opened == [discarded[0], trace.header.trace_id]
    assert discarded == opened[:1]
    assert (episode.head.ok, trace.ok) == (True, True)
    assert [(error.type, error.phase) for error in trace.errors] == [("ProviderError", "model")]
    assert [call.HasField("error") for call in trace.calls] == [True, False]
    assert [call.attempt for call in trace.calls] == [1, 2]


async def test_when_every_try_of_an_agent_fails_its_errors_are_in_their_order(pool: Stage) -> None:
    pool.engine.downs = 100
    before = len(pool.engine.requests)
    try:
        episode = await pool.client.run({"index": 0}, env="agent-retries", model="down")
    finally:
        pool.engine.downs = 0
    [trace] = episode.traces
    numbers = [int(error.message.partition("engine down ")[2].partition('"')[0]) for error in trace.errors]
    assert len(numbers) == 2
    assert before < numbers[0] < numbers[1]
    assert [error.message for error in episode.head.errors] == [error.message for error in trace.errors]
    assert not episode.head.ok


async def test_an_episode_is_tried_again(pool: Stage) -> None:
    pool.engine.downs = 4
    episode = await pool.client.run({"index": 0}, env="episode-retries", model="down")
    [trace] = episode.traces
    assert (episode.head.ok, trace.ok, len(trace.errors)) == (True, True, 0)
    assert [(error.type, error.phase) for error in episode.head.errors] == [("ProviderError", "model")]
