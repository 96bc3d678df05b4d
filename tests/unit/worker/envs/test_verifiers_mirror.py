"""Traces of verifiers become ours as they grow, also where verifiers announces nothing, or changes them."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from env_worker.domain import Link, PendingSet
from tests.helpers.fake_verifiers import (
    FakeNode,
    FakeTrace,
    Said,
    call,
    error,
    reward,
    sampled_node,
    user,
)
from tests.helpers.mirrored_verifiers import Stage, turned


async def test_turn_by_turn() -> None:
    stage = Stage()
    theirs = stage.mint(name="solver", trainable=False)
    await turned()
    [ours] = stage.episode.traces
    assert (ours.id, ours.agent, ours.trainable, ours.model) == (theirs.id, "solver", False, "m")
    assert ours.started_at == 1000.0
    theirs.pending = [user("ask")]
    theirs.notify()
    assert ours.pending is None, "written in verifiers' own call"
    await turned()
    assert ours.pending is not None
    assert (ours.pending.parent, [one.text for one in ours.pending.messages]) == (None, ["ask"])
    theirs.nodes += [FakeNode(user("ask")), sampled_node(0)]
    theirs.calls.append(call(1))
    theirs.pending = []
    theirs.notify()
    theirs.notify()
    await turned()
    assert [node.message.text for node in ours.nodes] == ["ask", "answer"]
    assert (ours.pending, len(ours.calls), ours.calls[0].node) == (None, 1, 1)
    assert (ours.calls[0].prompt_tokens, ours.calls[0].cached_tokens) == (12, 2)
    theirs.pending = [Said(role="tool", content="5", tool_call_id="c")]
    theirs.notify()
    await turned()
    assert ours.pending is not None
    assert ours.pending.parent == 1
    theirs.pending = []  # given up, without a node
    theirs.notify()
    await turned()
    assert ours.pending is None
    entries = len(ours.journal.entries)
    theirs.notify()
    await turned()
    assert len(ours.journal.entries) == entries, "nothing has changed"
    previews = [entry.pending for entry in ours.journal.entries if isinstance(entry, PendingSet)]
    assert [one is None for one in previews] == [False, True, False, True]


async def test_what_is_not_announced_is_found_at_the_end() -> None:
    stage = Stage()
    theirs = stage.mint()
    theirs.rewards["right"] = None
    theirs.metrics["turns"] = None
    await turned()
    [ours] = stage.episode.traces
    assert (ours.rewards["right"].value, dict(ours.metrics), ours.ok) == (None, {}, True)
    theirs.rewards = {"right": reward(1.0, 2.0), "best": reward(0.5)}
    theirs.metrics = {"turns": 3.0}
    theirs.info = {"seen": {1, 2}, "verifiers": "theirs", "nan": float("nan"), "array": np.arange(2)}
    theirs.stop_condition = "agent_completed"
    theirs.ok = True
    theirs.more = {"is_timeout": False, "dropped": None, "timing": {"start": 1.0}}
    stage.finish()
    assert {name: (one.value, one.weight) for name, one in ours.rewards.items()} == {
        "right": (1.0, 2.0),
        "best": (0.5, 1.0),
    }
    assert (dict(ours.metrics), ours.stop_condition, ours.ok) == ({"turns": 3.0}, "agent_completed", True)
    assert (ours.info["verifiers_"], ours.info["nan"], ours.info["array"]) == ("theirs", "nan", [0, 1])
    about = ours.info["verifiers"]
    assert (about["version"], about["task"]["idx"], about["timing"]) == ("0.4.1", 3, {"start": 1.0})
    assert "dropped" not in about
    assert ours.finished_at is not None
    assert stage.episode.ok


async def test_values_that_are_changed_or_taken_back() -> None:
    stage = Stage()
    theirs = stage.mint(rewards={"a": reward(1.0), "b": reward(1.0)}, metrics={"m": 1.0}, info={"k": [1]})
    await turned()
    [ours] = stage.episode.traces
    theirs.rewards = {"a": reward(1.0, 0.0)}
    theirs.metrics = {"m": None}
    theirs.info["k"].append(2)
    theirs.info["l"] = 1
    stage.finish()
    assert {name: one.weight for name, one in ours.rewards.items()} == {"a": 0.0}
    assert dict(ours.metrics) == {}
    assert (ours.info["k"], ours.info["l"]) == ([1, 2], 1)


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
async def test_a_reward_that_is_no_number_is_an_error_and_no_zero(score: float) -> None:
    stage = Stage()
    theirs = stage.mint(rewards={"a": None}, metrics={"m": score})
    await turned()
    theirs.rewards = {"a": reward(score)}
    stage.finish(ok=False)
    [ours] = stage.episode.traces
    assert (ours.rewards["a"].value, dict(ours.metrics)) == (None, {})
    assert [(one.type, one.phase) for one in ours.errors] == [("ValueError", "environment")]


async def test_an_agent_that_is_tried_again_has_another_trace() -> None:
    stage = Stage()
    first = stage.mint(id="1" * 32)
    first.calls.append(call(None, error("down 1", status=503)))
    first.errors.append(error("down 1", status=503))
    await turned()
    assert [one.message for one in stage.episode.traces[0].errors] == ["down 1 (status 503)"]
    stage.traces.remove(first)
    second = stage.mint(id="2" * 32)
    await turned()
    assert stage.discarded() == [first.id]
    second.errors.append(error("down 2"))
    second.notify()
    await turned()
    [ours] = stage.episode.traces
    generation = ours.journal.generation
    second.errors = first.errors + second.errors  # history goes in front
    stage.finish(ok=False)
    said = ["down 1 (status 503)", "down 2"]
    assert [one.message for one in ours.errors] == said
    assert ours.journal.generation == generation + 1, "the client was not told"
    assert [one.message for one in stage.episode.errors] == said
    assert {one.phase for one in stage.episode.errors} == {"model"}
    assert not stage.episode.ok
    assert ours.errors[1].occurred_at <= stage.episode.errors[0].occurred_at + 60


async def test_an_episode_that_is_tried_again_has_other_traces() -> None:
    stage = Stage()
    stage.mint(id="1" * 32)
    stage.mint(id="2" * 32)
    await turned()
    stage.slot.traces = []  # another list, as verifiers makes one
    good = stage.mint(id="3" * 32, ok=True)
    await turned()
    assert stage.discarded() == ["1" * 32, "2" * 32]
    stage.finish(errors=[error("first attempt", "HarnessError")])
    assert [trace.id for trace in stage.episode.traces] == [good.id]
    assert [(one.message, one.phase) for one in stage.episode.errors] == [("first attempt", "environment")]
    assert stage.episode.ok, "an error of an attempt that was tried again does not make it fail"


async def test_repaired_rows_links_and_branches() -> None:
    stage = Stage()
    rows = np.ones((4, 2, 2), np.uint8)
    theirs = stage.mint()
    theirs.nodes += [FakeNode(user("ask")), sampled_node(0, routed_experts=rows)]
    await turned()
    [ours] = stage.episode.traces
    entries = len(ours.journal.entries)
    wide = rows.astype(np.uint16)
    wide[-1] = 300
    theirs.nodes[1].routed_experts = wide
    theirs.notify()
    await turned()
    assert len(ours.journal.entries) == entries, "routing does not stream"
    assert ours.nodes[1].routed_experts is not None
    np.testing.assert_array_equal(ours.nodes[1].routed_experts, wide)
    theirs.nodes += [FakeNode(user("other"), 0), sampled_node(2)]
    theirs.nodes[1].semantic_parents.append(SimpleNamespace(node=3, type="subagent_return"))
    theirs.nodes[3].semantic_parents.append(SimpleNamespace(node=1, type="subagent_call"))
    theirs.notify()
    await turned()
    assert list(ours.links) == [Link(3, 1, "subagent_return"), Link(1, 3, "subagent_call")]
    assert ours.branches() == [(0, 1), (0, 2, 3)]
    stage.finish()
    assert len(ours.links) == 2


async def test_nothing_is_raised_into_verifiers(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    broken = stage.mint(id="x" * 200)  # no id that ours may have
    fine = stage.mint(id="f" * 32)
    await turned()
    assert [trace.id for trace in stage.episode.traces] == [fine.id]
    assert "cannot be read" in caplog.text
    broken.notify()
    await turned()
    with pytest.raises(ValueError, match="200 bytes"):
        stage.finish(ok=False, errors=[error("and this", "EnvError")])
    assert [one.message for one in stage.episode.errors] == ["and this"], "what could be read is there"


async def test_a_trace_that_cannot_be_watched_is_read_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    theirs = FakeTrace()
    theirs.watch = None  # type: ignore[method-assign,assignment]
    stage.traces.append(theirs)
    stage.mirror.minted(theirs)
    theirs.rewards["a"] = reward(1.0)
    stage.finish()
    assert stage.episode.traces[0].reward == 1.0
    assert "cannot be followed" in caplog.text


async def test_after_a_cancel_the_last_is_read_and_nothing_more() -> None:
    stage = Stage()
    theirs = stage.mint()
    await turned()
    theirs.nodes.append(FakeNode(user("ask")))
    theirs.notify()
    stage.mirror.stop()
    [ours] = stage.episode.traces
    assert (len(ours.nodes), ours.stop_condition, ours.ok) == (1, "cancelled", False)
    theirs.nodes.append(sampled_node(0))
    await turned()
    theirs.notify()
    await turned()
    assert len(ours.nodes) == 1


async def test_it_leaves_no_cycle() -> None:
    stage = Stage()
    theirs = stage.mint()
    await turned()
    stage.finish()
    gone = weakref.ref(stage.mirror)
    gc.disable()
    try:
        del stage
        assert gone() is None
    finally:
        gc.enable()
    assert theirs.watcher is None
