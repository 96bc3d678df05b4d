"""An answer that the engine has aborted fails its call, so that nothing scores it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from env_worker.envs.verifiers.aborts import refuse_aborted


class ProviderError(Exception):
    def __init__(self, message: str, *, status_code: int) -> None:
        super().__init__(message)
        self.status_code = status_code


def response_from_generate(result: dict[str, Any], model: str, turn: Any = None) -> Any:
    return (result, model, turn)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    modules = {}
    for name, content in (
        ("verifiers", {}),
        ("verifiers.v1", {}),
        ("verifiers.v1.clients", {}),
        ("verifiers.v1.clients.train", {"response_from_generate": response_from_generate}),
        ("verifiers.v1.errors", {"ProviderError": ProviderError}),
    ):
        module = modules[name.removeprefix("verifiers.v1.")] = ModuleType(name)
        module.__dict__.update(content)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    return modules


@pytest.mark.parametrize("word", ["abort", "error", "Aborted", "cancelled"])
def test_it_fails_the_call_in_the_engines_own_word(package: dict[str, Any], word: str) -> None:
    refuse_aborted()
    once = package["clients.train"].response_from_generate
    refuse_aborted()
    assert package["clients.train"].response_from_generate is once
    for usual in ("stop", "length", "tool_calls", "repetition", None):
        result = {"finish_reason": usual}
        assert once(result, "m", turn="t") == (result, "m", "t")
    with pytest.raises(ProviderError, match=repr(word)) as refused:
        once({"finish_reason": word}, "m")
    assert refused.value.status_code == 503, "harnesses try that again"


def test_a_version_that_has_it_no_longer(package: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    del package["clients.train"].response_from_generate
    refuse_aborted()
    assert "counts as one, and is scored" in caplog.text
