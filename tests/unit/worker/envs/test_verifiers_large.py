"""An answer that no node can carry fails its call, as where our own clients ask."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from env_worker.envs.verifiers.large import refuse_large
from env_worker.model.fields.sizes import MAX_BESIDE_BYTES, MAX_MESSAGE_VALUES, MAX_TURN_BYTES
from tests.helpers.fake_verifiers import assistant

if TYPE_CHECKING:
    from collections.abc import Callable


class ProviderError(Exception):
    def __init__(self, message: str, *, status_code: int) -> None:
        super().__init__(message)
        self.status_code = status_code


@pytest.fixture
def turn(monkeypatch: pytest.MonkeyPatch) -> type:
    class PendingTurn:
        def commit(self, response: Any) -> int:
            return 7 if response.message else 8

    for name, content in (
        ("verifiers", {}),
        ("verifiers.v1", {}),
        ("verifiers.v1.graph", {"PendingTurn": PendingTurn}),
        ("verifiers.v1.errors", {"ProviderError": ProviderError}),
    ):
        module = ModuleType(name)
        module.__dict__.update(content)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    return PendingTurn


def answer(message: Any, sampled: int | None = None) -> Any:
    if sampled is None:
        return SimpleNamespace(message=message, tokens=None)
    ids = np.zeros(sampled, np.int32)
    return SimpleNamespace(message=message, tokens=SimpleNamespace(prompt_ids=ids[:1], completion_ids=ids))


@pytest.mark.parametrize(
    ("said", "sampled", "reason"),
    [
        (lambda: assistant("x" * (MAX_TURN_BYTES + 1)), None, f"the limit is {MAX_TURN_BYTES}"),
        (lambda: assistant("", reasoning_content="\xe9" * (MAX_TURN_BYTES // 2 + 1)), 0, "of text or more"),
        (lambda: assistant("x" * (MAX_TURN_BYTES - 90)), 10, "makes a node of"),
        (lambda: assistant("x"), MAX_TURN_BYTES // 9, "makes a node of"),
        (lambda: assistant("", provider_state=[{"x": "y" * MAX_BESIDE_BYTES}]), 0, "beside its content"),
        (lambda: assistant("", provider_state=[{"x": [1] * MAX_MESSAGE_VALUES}]), 0, "values or more"),
    ],
    ids=["content", "reasoning", "with tokens", "tokens", "beside", "values"],
)
def test_what_no_node_can_carry_fails_the_call(
    turn: Any, said: Callable[[], Any], sampled: int | None, reason: str
) -> None:
    refuse_large()
    once = turn.commit
    refuse_large()
    assert turn.commit is once
    with pytest.raises(ProviderError, match=reason) as refused:
        turn().commit(answer(said(), sampled))
    assert refused.value.status_code == 422, "harnesses do not try that again"


@pytest.mark.parametrize("sampled", [None, 0, 1000])
def test_what_one_can_carry_is_taken(turn: Any, sampled: int | None) -> None:
    refuse_large()
    call = SimpleNamespace(id="1", type="function", name="f", arguments="{}", namespace=None)
    said = assistant("x" * (MAX_TURN_BYTES - 20_000), reasoning_content="r", provider_state=[{"x": 1}])
    said.tool_calls = [call]
    assert turn().commit(answer(said, sampled)) == 7


def test_a_version_that_has_it_no_longer(turn: Any, caplog: pytest.LogCaptureFixture) -> None:
    del turn.commit
    refuse_large()
    assert "ends its run with MESSAGE_TOO_LARGE" in caplog.text
