"""A key that an engine repeats reaches neither an episode nor its calls."""

from __future__ import annotations

import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from env_worker.model import engine_model
from env_worker.model.errors import EngineError, MalformedAnswerError
from env_worker.model.http import close_clients
from tests.engine import Reply, ScriptedEngine
from tests.helpers.engine_models import QUESTION, model_of, new_trace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY = "sk-very-secret-4711"


@pytest.fixture(autouse=True)
async def connections() -> AsyncIterator[None]:
    yield
    await close_clients()


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": f"{'x' * 280} Bearer {KEY}"}},
        {"error": f"bad key {KEY}"},
        {KEY: 1},
        {"choices": [{"message": {"role": KEY}}]},
        {"choices": [{"message": {"tool_calls": [{"type": KEY}]}}]},
        {"choices": [{"finish_reason": {"type": "abort", "message": f"{'x' * 1980}{KEY}"}}]},
    ],
)
async def test_a_key_in_an_answer_that_is_none_reaches_nobody(
    body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", KEY)
    trace = new_trace()
    async with ScriptedEngine(reply=lambda _: Reply("x", edit=lambda _told: body)) as engine:
        model = model_of(engine, retries=0)
        model = replace(model, engine=replace(model.engine, key_variable="ENGINE_KEY"))
        with pytest.raises(EngineError) as raised:
            await model.chat(trace, [QUESTION])
    assert len(str(raised.value)) < 2200
    [call] = trace.calls
    assert call.error is not None
    for told in (str(raised.value), call.error.message, call.error.traceback):
        assert KEY[:4] not in told


async def test_a_key_in_the_reason_of_a_hole_reaches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(told: Any) -> Any:
        told["choices"][0]["token_ids"] = KEY
        return told

    monkeypatch.setenv("ENGINE_KEY", KEY)
    trace = new_trace()
    async with ScriptedEngine(reply=[Reply("x", edit=edit)]) as engine:
        model = model_of(engine)
        model = replace(model, engine=replace(model.engine, key_variable="ENGINE_KEY"))
        turn = await model.chat(trace, [QUESTION])
    assert trace.nodes[turn.node].holes["token_ids"] == "token_ids is '***', expected a list"
    assert KEY not in str(trace.info)


async def test_a_key_in_the_data_of_an_answer_reaches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(told: Any) -> Any:
        told["model"] = f"m as {KEY}"
        [choice] = told["choices"]
        choice["finish_reason"] = f"stop {KEY.upper()}"
        tokens = len(choice["token_ids"])
        spans = [(0, 1, KEY), (1, tokens, "step-1200")]
        choice["weight_versions"] = [{"version": v, "start": first, "end": end} for first, end, v in spans]
        return told

    monkeypatch.setenv("ENGINE_KEY", KEY)
    trace = new_trace()
    async with ScriptedEngine(reply=[Reply("a few words", edit=edit)]) as engine:
        model = model_of(engine)
        headers = {"x-weights": "step-1200"}
        model = replace(model, engine=replace(model.engine, key_variable="ENGINE_KEY", headers=headers))
        turn = await model.chat(trace, [QUESTION])
    [call] = trace.calls
    assert turn.finish_reason == call.finish_reason == "stop ***"
    assert call.model == "m as ***"
    assert [span.version for span in call.weight_versions] == ["***", "step-1200"]


async def test_a_key_in_very_many_spans_of_weights_reaches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(told: Any) -> Any:
        [choice] = told["choices"]
        tokens = len(choice["token_ids"])
        choice["weight_versions"] = [
            {"version": f"{KEY}/{at}", "start": at, "end": at + 1} for at in range(tokens)
        ]
        return told

    monkeypatch.setenv("ENGINE_KEY", KEY)
    trace = new_trace()
    async with ScriptedEngine(reply=[Reply("x" * 2000, edit=edit)]) as engine:
        model = model_of(engine)
        model = replace(model, engine=replace(model.engine, key_variable="ENGINE_KEY"))
        await model.chat(trace, [QUESTION])
    [call] = trace.calls
    assert len(call.weight_versions) > 1000
    assert {span.version[:4] for span in call.weight_versions} == {"***/"}


async def test_a_key_in_what_led_to_an_error_reaches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        name = "vllm-chat"
        endpoint = "/chat/completions"

        async def ask(self, *_asked: object) -> Any:
            try:
                raise ValueError(f"half of {KEY}")
            except ValueError as error:
                raise MalformedAnswerError(f"no message: {error}") from error

    monkeypatch.setenv("ENGINE_KEY", KEY)
    monkeypatch.setattr(engine_model, "DIALECTS", {Failing.name: Failing()})
    trace = new_trace()
    async with ScriptedEngine() as engine:
        model = model_of(engine)
        model = replace(model, engine=replace(model.engine, key_variable="ENGINE_KEY"))
        with pytest.raises(EngineError) as raised:
            await model.chat(trace, [QUESTION])
    [call] = trace.calls
    assert call.error is not None
    for told in (call.error.traceback, *traceback.format_exception(raised.value)):
        assert KEY[:8] not in told
