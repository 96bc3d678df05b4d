"""The kit with which an environment's author tests it: it must behave as a worker does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from env_worker.domain import Episode, InvalidTaskError, Message, ToolCall, ToolError
from env_worker.testing import ScriptedModel, rehearse, rehearsed

if TYPE_CHECKING:
    from env_worker.envs.base import Context


class Asker:
    """Asks `turns` times, and raises what the task says."""

    cancelled = False

    async def run(self, context: Context) -> None:
        task = context.task
        if task.get("early"):
            raise InvalidTaskError("task key 'early' is set")
        trace, last = context.new_trace(), None
        for number in range(task.get("turns", 1)):
            answer = await context.model.chat(trace, [Message.user(f"turn {number}")], parent=last)
            last = answer.node
        if task.get("tool_fails"):
            raise ToolError("the sandbox is gone")
        if task.get("hangs"):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
        trace.set_reward("done", 1.0)


def test_a_script_plays_an_episode_to_its_end() -> None:
    call = Message.assistant("", tool_calls=[ToolCall("c1", "look", "{not json")])
    model = ScriptedModel("one", call)
    episode = rehearsed(Asker(), {"turns": 2}, model=model)
    (trace,) = episode.traces
    assert [node.message.text for node in trace.nodes] == ["turn 0", "one", "turn 1", ""]
    assert [node.parent for node in trace.nodes] == [None, 0, 1, 2]
    assert trace.nodes[3].message == call
    assert [call.finish_reason for call in trace.calls] == ["stop", "tool_calls"]
    assert [[message.text for message in asked] for asked in model.asked] == [["turn 0"], ["turn 1"]]
    assert episode.ok
    assert episode.finished_at is not None
    assert trace.pending is None


async def test_a_script_refuses_what_every_model_refuses_and_tells_the_tools() -> None:
    trace = Episode("episode", "test", {}).new_trace()
    model = ScriptedModel("one")
    with pytest.raises(ValueError, match="no message to answer"):
        await model.chat(trace, [])
    tool = {"type": "function", "function": {"name": "zähle", "parameters": {}}}
    await model.chat(trace, [Message.user("turn 0")], tools=[tool])
    assert "zähle" in trace.tools_json


def test_a_failure_after_the_first_trace_is_data_and_says_where_it_was() -> None:
    episode = rehearsed(Asker(), {"tool_fails": True}, model=ScriptedModel("one"))
    assert not episode.ok
    assert episode.reward is None
    assert [(error.type, error.phase) for error in episode.errors] == [("ToolError", "tool")]


def test_a_failure_before_the_first_trace_is_raised() -> None:
    with pytest.raises(InvalidTaskError, match="'early'"):
        rehearsed(Asker(), {"early": True})


def test_the_engine_that_fails_is_recorded_as_a_call() -> None:
    episode = rehearsed(Asker(), {}, model=ScriptedModel(ConnectionError("refused")))
    (trace,) = episode.traces
    (call,) = trace.calls
    assert call.node is None
    assert call.error is not None
    assert (call.error.type, call.error.phase) == ("ConnectionError", "model")
    assert [error.type for error in episode.errors] == ["ConnectionError"]


def test_a_script_that_is_too_short_fails_the_test_and_not_the_episode() -> None:
    with pytest.raises(AssertionError, match="turn 2, but the script has 1 answers"):
        rehearsed(Asker(), {"turns": 2}, model=ScriptedModel("one"))


async def test_an_environment_that_does_not_end_is_cancelled() -> None:
    environment = Asker()
    with pytest.raises(TimeoutError):
        await rehearse(environment, {"hangs": True}, model=ScriptedModel("one"), timeout=0.05)
    assert environment.cancelled


def test_a_task_comes_as_json() -> None:
    assert rehearsed(Asker(), {"turns": 1, "list": (1, 2)}).task == {"turns": 1, "list": [1, 2]}
    with pytest.raises(ValueError, match="JSON"):
        rehearsed(Asker(), {"turns": float("nan")})
