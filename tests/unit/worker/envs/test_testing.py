"""The kit with which an environment's author tests it: it must behave as a worker does."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from env_worker import testing
from env_worker.domain import Episode, InvalidTaskError, Message, ToolCall, ToolError
from env_worker.testing import ScriptedModel, rehearse, rehearsed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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


class Played:
    """Does what it is told."""

    def __init__(self, run: Callable[[Context], Awaitable[None]]) -> None:
        self._run = run

    async def run(self, context: Context) -> None:
        await self._run(context)


def raises(error: BaseException, *, traced: bool = True) -> Played:
    async def run(context: Context) -> None:
        if traced:
            context.new_trace()
        raise error

    return Played(run)


FAILURES = [
    SystemExit(3),
    asyncio.CancelledError("mine"),
    KeyboardInterrupt(),
    AssertionError("its own"),
    TimeoutError("a tool's"),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_whatever_is_raised_after_the_first_trace_is_data(error: BaseException) -> None:
    episode = rehearsed(raises(error), {}, model=ScriptedModel())
    assert not episode.ok
    assert episode.reward is None
    assert [(one.type, one.phase) for one in episode.errors] == [(type(error).__name__, "environment")]


@pytest.mark.parametrize("error", FAILURES[:3], ids=lambda error: type(error).__name__)
def test_what_would_end_the_test_runner_is_the_cause_of_an_error_that_does_not(error: BaseException) -> None:
    with pytest.raises(RuntimeError, match=r"before its first trace: a worker refuses") as caught:
        rehearsed(raises(error, traced=False), {})
    assert caught.value.__cause__ is error


def test_an_environment_that_swallows_the_scripts_end_fails_the_test() -> None:
    async def run(context: Context) -> None:
        trace = context.new_trace()
        for _ in range(3):
            with contextlib.suppress(BaseException):
                await context.model.chat(trace, [Message.user("again")])
        trace.set_reward("r", 1.0)

    model = ScriptedModel("one")
    with pytest.raises(AssertionError, match="turn 2, but the script has 1 answers"):
        rehearsed(Played(run), {}, model=model)


async def test_one_that_asks_for_ever_is_stopped_and_the_script_is_the_reason() -> None:
    async def run(context: Context) -> None:
        trace = context.new_trace()
        while True:
            try:
                await context.model.chat(trace, [Message.user("again")])
            except Exception:
                continue

    with pytest.raises(AssertionError, match="the script has 0 answers"):
        await rehearse(Played(run), {}, model=ScriptedModel(), timeout=0.05)


def swallowing(times: int) -> Played:
    async def run(context: Context) -> None:
        context.new_trace()
        for _ in range(times):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
        context.new_trace().set_reward("r", 1.0)

    return Played(run)


async def test_an_environment_that_swallows_its_cancel_has_timed_out_nevertheless() -> None:
    with pytest.raises(TimeoutError, match=r"not ended after 0\.05 s, and was cancelled$"):
        await rehearse(swallowing(1), {}, timeout=0.05)


def test_one_that_swallows_every_cancel_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "CLEAN_UP_SECONDS", 0.05)
    with pytest.raises(TimeoutError, match=r"not ended 0\.05 s later either: let CancelledError pass"):
        rehearsed(swallowing(1_000_000), {}, timeout=0.05)


async def test_what_it_raises_when_it_is_cancelled_is_the_timeouts_cause() -> None:
    async def run(context: Context) -> None:
        context.new_trace()
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("the sandbox cannot be removed")

    with pytest.raises(TimeoutError) as caught:
        await rehearse(Played(run), {}, timeout=0.05)
    assert isinstance(caught.value.__cause__, OSError)


async def test_a_rehearsal_that_is_cancelled_cancels_its_environment() -> None:
    environment, started, before = Asker(), asyncio.Event(), asyncio.all_tasks()

    class Model(ScriptedModel):
        async def chat(self, *arguments: Any, **options: Any) -> Any:
            started.set()
            return await super().chat(*arguments, **options)

    rehearsal = asyncio.create_task(rehearse(environment, {"hangs": True}, model=Model("one")))
    await started.wait()
    rehearsal.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rehearsal
    never_begun = asyncio.create_task(rehearse(Asker(), {}))
    await asyncio.sleep(0)
    never_begun.cancel()
    with pytest.raises(asyncio.CancelledError):
        await never_begun
    assert asyncio.all_tasks() == before


class Awaited(Asker):
    async def validate(self, task: object) -> None: ...


@pytest.mark.parametrize(
    ("environment", "task", "options", "message"),
    [
        (Asker, {}, {}, r"Asker'> is a class: pass an instance, as Asker\(\)"),
        (object(), {}, {}, "define: async def run"),
        (Awaited(), {}, {}, "define: def validate"),
        (Asker(), None, {}, "task is None, expected a dict"),
        (Asker(), {}, {"sampling": {"temperature": 1}}, "sampling is a dict, expected SamplingParams"),
    ],
)
def test_what_is_no_argument_is_refused_with_the_next_step(
    environment: Any, task: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        rehearsed(environment, task, **options)


def test_a_script_is_texts_messages_and_exceptions() -> None:
    for wrong in (["one", "two"], ToolError, None):
        with pytest.raises(TypeError, match="one by one"):
            ScriptedModel(wrong)  # type: ignore[arg-type]
