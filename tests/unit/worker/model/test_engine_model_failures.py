"""An engine that fails: each try is a Call, the error is raised, and nothing else is left behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from env_worker.model.dialects.base import EngineOptions
from env_worker.model.engine import Engine
from env_worker.model.engine_model import EngineModel
from env_worker.model.errors import (
    EngineAbortedError,
    EngineError,
    EngineRefusedError,
    EngineUnreachableError,
    MalformedAnswerError,
)
from env_worker.model.http import close_clients
from env_worker.model.retry import Backoff
from tests.engine import (
    OPENAI,
    PROFILES,
    Fault,
    Quirk,
    Reply,
    ScriptedEngine,
    held,
    refused,
)
from tests.helpers.engine_models import QUESTION, Pauses, active, errors_of, model_of, new_trace
from tests.helpers.scripted_http import ScriptedHttp, says
from tests.unit.worker.model.responses import derendered, rendered, vllm_generate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(autouse=True)
async def connections() -> AsyncIterator[None]:
    yield
    await close_clients()


# Tries.


async def test_each_try_that_failed_is_a_call_and_the_turn_is_one() -> None:
    trace, pauses = new_trace(), Pauses()
    faults = [
        refused(503, message="updating weights"),
        refused(429, retry_after="3"),
        Fault("dropped"),
        Fault("broken"),
    ]
    async with ScriptedEngine(faults=faults) as engine:
        backoff = Backoff(sleep=pauses.sleep, draw=lambda: 1.0)
        turn = await model_of(engine, backoff=backoff).chat(trace, [QUESTION])
        url = engine.url
    assert errors_of(trace) == [
        (1, "EngineRefusedError"),
        (2, "EngineRefusedError"),
        (3, "EngineUnreachableError"),
        (4, "EngineUnreachableError"),
        (5, ""),
    ]
    assert len(trace.nodes) == 2
    assert [call.node for call in trace.calls] == [None] * 4 + [turn.node]
    for call in trace.calls:
        assert (call.endpoint, call.dialect) == (f"{url}/chat/completions", "vllm-chat")
        assert call.error is None or call.error.phase == "model"
    assert trace.calls[0].error is not None
    assert "503: updating weights" in trace.calls[0].error.message
    assert not trace.errors
    assert pauses.slept == [0.5, 3.5, 2.0, 4.0]
    started = [call.started_at for call in trace.calls]
    assert started == sorted(started)


@pytest.mark.parametrize("kind", ["not-json", "empty", "html", "dropped", "broken"])
async def test_what_brought_nothing_of_use_is_asked_again(kind: Any) -> None:
    trace = new_trace()
    async with ScriptedEngine(faults=[Fault(kind, status=502)]) as engine:
        await model_of(engine).chat(trace, [QUESTION])
    assert [attempt for attempt, _ in errors_of(trace)] == [1, 2]
    assert len(trace.nodes) == 2


async def test_retries_are_bounded_and_nothing_is_left_behind() -> None:
    trace = new_trace()
    async with ScriptedEngine(faults=[refused(500)] * 3) as engine:
        with pytest.raises(EngineRefusedError, match="status 500"):
            await model_of(engine, retries=2).chat(trace, [QUESTION])
        assert len(engine.requests) == 3
    assert errors_of(trace) == [(i, "EngineRefusedError") for i in (1, 2, 3)]
    assert trace.pending is None
    assert not trace.nodes
    assert not trace.info


async def test_a_refusal_is_not_tried_again() -> None:
    trace = new_trace()
    async with ScriptedEngine(faults=[refused(404)]) as engine:
        with pytest.raises(EngineRefusedError) as raised:
            await model_of(engine).chat(trace, [QUESTION])
        assert len(engine.requests) == 1
    assert raised.value.status == 404
    assert errors_of(trace) == [(1, "EngineRefusedError")]


async def test_a_dialects_own_requests_are_tried_again_each() -> None:
    trace = new_trace()
    faults = [refused(503, path="render"), refused(500, path="generate"), refused(502, path="derender")]
    async with ScriptedEngine(faults=faults) as engine:
        await model_of(engine, "vllm-generate", options=EngineOptions()).chat(trace, [QUESTION])
        root = engine.root
    told = [(call.endpoint.removeprefix(root), call.attempt, call.node) for call in trace.calls]
    assert told == [
        ("/v1/chat/completions/render", 1, None),
        ("/inference/v1/generate", 1, None),
        ("/v1/chat/completions/derender", 1, None),
        ("/inference/v1/generate", 2, 1),
    ]


async def test_a_try_has_a_timeout() -> None:
    trace = new_trace()
    async with ScriptedEngine(faults=[held(), held()]) as engine:
        with pytest.raises(EngineUnreachableError, match=r"no whole answer in 0\.1 s"):
            await model_of(engine, timeout_seconds=0.1, retries=1).chat(trace, [QUESTION])
        await active(engine, 0)
    assert errors_of(trace) == [(1, "EngineUnreachableError"), (2, "EngineUnreachableError")]


@pytest.mark.parametrize(
    ("profile", "dialect"),
    [
        (OPENAI, "openai-chat"),
        (PROFILES["vllm-0.33"], "vllm-chat"),
        (PROFILES["vllm-0.33"], "vllm-completions"),
        (PROFILES["vllm-0.33"], "vllm-generate"),
        (PROFILES["sglang-0.5.23"], "sglang-chat"),
    ],
)
@pytest.mark.parametrize("word", ["abort", "error"])
async def test_what_the_engine_gave_up_is_no_answer_and_asked_again(
    profile: Any, dialect: str, word: str
) -> None:
    trace = new_trace()
    replies = [Reply("half of i", finish_reason=word), Reply(ids=(), finish_reason=word), Reply("whole")]
    async with ScriptedEngine(profile, replies) as engine:
        turn = await model_of(engine, dialect, options=EngineOptions()).chat(trace, [QUESTION])
    assert turn.message.text == "whole"
    assert errors_of(trace) == [(1, "EngineAbortedError"), (2, "EngineAbortedError"), (3, "")]
    assert [call.node for call in trace.calls] == [None, None, turn.node]
    assert len(trace.nodes) == 2
    error = trace.calls[0].error
    assert error is not None
    assert error.phase == "model"
    assert f"finish_reason '{word}', which is no answer" in error.message


@pytest.mark.parametrize(
    "change",
    [
        {"finish_reason": "Abort"},
        {"finish_reason": "aborted"},
        {"finish_reason": "cancelled"},
        {"finish_reason": {"type": "ERROR", "message": "out of memory"}},
        {"error": {"message": "out of memory", "code": 502}},
        {"error": "out of memory"},
    ],
)
@pytest.mark.parametrize("beside", [False, True])
async def test_so_is_one_that_says_so_in_other_words(change: dict[str, Any], beside: bool) -> None:
    def edit(told: Any) -> Any:
        (told if beside and "error" in change else told["choices"][0]).update(change)
        return told

    trace = new_trace()
    async with ScriptedEngine(reply=[Reply("half", edit=edit), Reply("whole")]) as engine:
        turn = await model_of(engine).chat(trace, [QUESTION])
    assert turn.message.text == "whole"
    assert errors_of(trace) == [(1, "EngineAbortedError"), (2, "")]
    error = trace.calls[0].error
    assert error is not None
    assert "which is no answer: the engine gave the request up" in error.message
    assert ("out of memory" in error.message) == ("out of memory" in str(change))


async def test_what_is_given_up_may_be_the_parsing_alone() -> None:
    failed = {**derendered(), "error": {"message": "out of memory"}}
    scripts = map(says, (rendered(), vllm_generate(), failed, derendered()))
    trace = new_trace()
    async with ScriptedHttp(*scripts) as server:
        engine = Engine(server.url, "m", "vllm-generate")
        await EngineModel(engine, backoff=Backoff(sleep=Pauses().sleep)).chat(trace, [QUESTION])
        assert [seen.path for seen in server.requests][2:] == ["/v1/chat/completions/derender"] * 2
    assert errors_of(trace) == [(1, "EngineAbortedError"), (1, "")]


@pytest.mark.parametrize("said", [None, {}, "", False, {"message": None, "code": None}])
async def test_an_error_that_says_nothing_is_none(said: Any) -> None:
    def edit(told: Any) -> Any:
        told["error"] = told["choices"][0]["error"] = said
        return told

    trace = new_trace()
    async with ScriptedEngine(reply=[Reply("whole", edit=edit)]) as engine:
        assert (await model_of(engine).chat(trace, [QUESTION])).message.text == "whole"


async def test_what_the_engine_gives_up_each_time_is_an_error_and_no_turn() -> None:
    def edit(told: Any) -> Any:
        told["choices"][0]["finish_reason"] = {"type": "abort", "message": "paused"}
        return told

    trace = new_trace()
    async with ScriptedEngine(reply=lambda _: Reply("half", edit=edit)) as engine:
        with pytest.raises(EngineAbortedError, match="gave the request up: paused; given up after 2 tries"):
            await model_of(engine, retries=1).chat(trace, [QUESTION])
    assert errors_of(trace) == [(1, "EngineAbortedError"), (2, "EngineAbortedError")]
    assert not trace.nodes
    assert trace.pending is None


# Failing otherwise.


async def test_an_answer_without_a_message_is_an_error_and_no_turn() -> None:
    trace = new_trace()
    async with ScriptedEngine(reply=[Reply("x", quirks=frozenset({Quirk.CHOICES_EMPTY}))]) as engine:
        with pytest.raises(MalformedAnswerError):
            await model_of(engine).chat(trace, [QUESTION])
    ((attempt, kind),) = errors_of(trace)
    assert (attempt, kind) == (1, "MalformedAnswerError")
    assert trace.calls[0].error is not None
    assert trace.calls[0].error.phase == "model"
    assert trace.pending is None
    assert not trace.nodes


async def test_a_key_that_is_not_set_is_an_error_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGINE_KEY", raising=False)
    trace = new_trace()
    async with ScriptedEngine() as engine:
        model = EngineModel(Engine(engine.url, "scripted", "vllm-chat", key_variable="ENGINE_KEY"))
        with pytest.raises(EngineError, match="ENGINE_KEY"):
            await model.chat(trace, [QUESTION])
        assert not engine.requests
    assert errors_of(trace) == [(1, "EngineError")]
    assert trace.pending is None


async def test_there_must_be_a_message_and_a_parent() -> None:
    trace = new_trace()
    async with ScriptedEngine() as engine:
        with pytest.raises(ValueError, match="no message to answer"):
            await model_of(engine).chat(trace, [])
        with pytest.raises(ValueError, match="7"):
            await model_of(engine).chat(trace, [QUESTION], parent=7)
    assert not trace.calls
    assert trace.pending is None


async def test_cancelling_closes_the_request_and_drops_what_was_pending() -> None:
    trace = new_trace()
    async with ScriptedEngine(faults=[held()]) as engine:
        before = asyncio.all_tasks()
        asking = asyncio.create_task(model_of(engine).chat(trace, [QUESTION]))
        await active(engine, 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert trace.pending is None
        assert errors_of(trace) == [(1, "CancelledError")]
        await engine.until(lambda engine: engine.disconnected == 1)
        await active(engine, 0)
    assert not trace.nodes
    assert not {task for task in asyncio.all_tasks() - before if "env_worker" in repr(task)}


async def test_cancelling_ends_a_pause_too() -> None:
    trace, paused = new_trace(), asyncio.Event()

    async def forever(_: float) -> None:
        paused.set()
        await asyncio.Event().wait()

    async with ScriptedEngine(faults=[refused(503)]) as engine:
        asking = asyncio.create_task(model_of(engine, backoff=Backoff(sleep=forever)).chat(trace, [QUESTION]))
        await asyncio.wait_for(paused.wait(), 10)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert len(engine.requests) == 1
    assert errors_of(trace) == [(1, "EngineRefusedError"), (1, "CancelledError")]
    assert trace.pending is None
