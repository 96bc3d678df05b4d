"""What failed in an episode of verifiers: the engine, a tool, or the environment."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.fake_verifiers import FakeNode, call, error, sampled_node, user
from tests.helpers.mirrored_verifiers import Stage, turned


async def test_errors_are_told_apart() -> None:
    stage = Stage()
    kinds = ("ProviderError", "ToolsetError", "HarnessError", "TaskError", "SandboxError", "KeyError")
    stage.mint(errors=[error(kind, kind) for kind in kinds])
    stage.finish(ok=False)
    assert [one.phase for one in stage.episode.errors] == ["model", "tool"] + ["environment"] * 4


MALFORMED = error("no logprob", "MalformedGenerateResponseError")


def died(message: str = "harness 'null' exited 1") -> Any:
    """What verifiers records where a harness has ended, be it for a call that failed."""
    return error(message, "HarnessError")


@pytest.mark.parametrize(
    ("calls", "stop", "phase"),
    [
        ([call(1), call(None, MALFORMED), call(None, MALFORMED)], "harness_error", "model"),
        ([call(None, MALFORMED), call(1)], "harness_error", "environment"),
        ([call(None, MALFORMED)], "agent_completed", "environment"),
        ([call(None, error("a hook", "TaskError"))], "harness_error", "environment"),
        ([call(None, error("", "CancelledError"))], "harness_error", "environment"),
        ([], "harness_error", "environment"),
    ],
    ids=["its last call", "one was answered since", "it had ended well", "a hook's", "it had left", "none"],
)
async def test_a_harness_that_died_of_a_failed_call_is_the_models_fault(
    calls: list[Any], stop: str, phase: str
) -> None:
    stage = Stage()
    stage.mint(
        nodes=[FakeNode(user("ask")), sampled_node(0)], calls=calls, errors=[died()], stop_condition=stop
    )
    stage.finish(ok=False)
    [ours] = stage.episode.traces
    for record in (*ours.errors, *stage.episode.errors):
        assert (record.type, record.message, record.phase) == (
            "HarnessError",
            "harness 'null' exited 1",
            phase,
        )
    assert len(ours.errors) == len(stage.episode.errors) == 1


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "gone before it was looked at"])
@pytest.mark.parametrize("whole", [True, False], ids=["episode", "agent"])
async def test_each_attempt_has_its_own_fault(seen: bool, whole: bool) -> None:
    """The errors of all attempts are handed on to the last, whose calls tell nothing of the others'."""
    stage = Stage()
    kinds = {"1" * 32: (call(1), died("of itself")), "2" * 32: (call(None, MALFORMED), died("of the call"))}
    history = []
    for name, (last, fault) in kinds.items():
        theirs = stage.mint(id=name, nodes=[FakeNode(user("ask")), sampled_node(0)])
        await turned()
        theirs.calls.append(last)
        theirs.errors.append(fault)
        theirs.stop_condition = "harness_error"
        if seen:
            theirs.notify()
            await turned()
        history.append(fault)
        stage.slot.traces = []
    third = stage.mint(id="3" * 32, ok=True)
    third.calls.append(call(None, MALFORMED))  # it was tried again
    third.errors = [] if whole else history
    stage.finish(ok=not whole, errors=history if whole else [])
    [ours] = stage.episode.traces
    told = stage.episode.errors if whole else ours.errors
    assert [(one.message, one.phase) for one in told] == [
        ("of itself", "environment"), ("of the call", "model")
    ]  # fmt: skip
