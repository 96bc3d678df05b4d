"""A key that an engine repeats reaches neither an episode nor its calls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from env_worker.model.errors import EngineError
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
