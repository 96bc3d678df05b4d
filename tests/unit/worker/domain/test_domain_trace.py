"""Traces: branches, rewards, info, and what is refused; the journal has its own tests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_worker.domain import Call, EpisodeError, Journal, Link, Message, NodeAdded, Pending, Reward, Trace

ASKED = Message.user("hi")


@st.composite
def parents(draw: st.DrawFn) -> list[int | None]:
    count = draw(st.integers(0, 12))
    return [draw(st.none() | st.integers(0, index - 1)) if index else None for index in range(count)]


@given(parents())
def test_branches_run_from_every_leaf_to_its_root(graph: list[int | None]) -> None:
    trace = Trace("t")
    for index, parent in enumerate(graph):
        assert trace.add_node(ASKED, [index] * (index % 3), parent=parent) == index
    branches = trace.branches()
    assert [branch[-1] for branch in branches] == [i for i in range(len(graph)) if i not in graph]
    assert {index for branch in branches for index in branch} == set(range(len(graph)))
    for branch in branches:
        assert [graph[index] for index in branch] == [None, *branch[:-1]]
        tokens = trace.token_ids(branch[-1])
        assert tokens.dtype == np.int32
        assert tokens.tolist() == [index for index in branch for _ in range(index % 3)]


def test_a_path_may_end_at_any_node() -> None:
    trace = Trace("t")
    for parent in (None, 0, 1, 0):
        trace.add_node(ASKED, parent=parent)
    assert (trace.path(1), trace.branches()) == ((0, 1), [(0, 1, 2), (0, 3)])


@pytest.mark.parametrize("index", [-1, 1, 10])
def test_nodes_that_do_not_exist_are_refused_and_nothing_changes(index: int) -> None:
    trace = Trace("t")
    trace.add_node(ASKED)
    attempts = (
        lambda: trace.add_node(ASKED, parent=index),
        lambda: trace.path(index),
        lambda: trace.token_ids(index),
        lambda: trace.add_call(Call(node=index)),
        lambda: trace.add_link(Link(index, 0, "k")),
        lambda: trace.add_link(Link(0, index, "k")),
        lambda: trace.set_pending([ASKED], index),
        lambda: trace.repair_routing(index, 0, np.zeros((1, 1), np.uint8)),
    )
    for attempt in attempts:
        with pytest.raises(ValueError, match="node"):
            attempt()
    assert trace.journal.entries == [NodeAdded(0, trace.nodes[0])]


def test_links_may_point_into_another_trace() -> None:
    trace = Trace("t")
    trace.add_node(ASKED)
    assert trace.add_link(Link(0, 7, "answers", "u")) == 0
    with pytest.raises(ValueError, match="link's target is 7"):
        trace.add_link(Link(0, 7, "answers", "t"))


def test_wrong_types_are_refused_where_they_are_written() -> None:
    trace = Trace("t")
    attempts = (
        lambda: trace.add_error(ValueError("x")),  # type: ignore[arg-type]
        lambda: trace.rewrite_errors(["x"]),  # type: ignore[list-item]
        lambda: trace.add_call({}),  # type: ignore[arg-type]
        lambda: trace.add_link((0, 0)),  # type: ignore[arg-type]
        lambda: trace.set_pending(["x"]),  # type: ignore[list-item]
        lambda: trace.add_node(ASKED, parent="0"),  # type: ignore[arg-type]
        lambda: trace.set_metric("m", "1"),  # type: ignore[arg-type]
        lambda: trace.set_reward(1, 1.0),  # type: ignore[arg-type]
    )
    for attempt in attempts:
        with pytest.raises(TypeError):
            attempt()
    assert trace.journal.entries == []


def test_a_refused_node_leaves_the_preview_alone() -> None:
    trace = Trace("t")
    trace.set_pending([ASKED])
    with pytest.raises(ValueError, match="logprobs"):
        trace.add_node(ASKED, [1], sampled=True, logprobs=[0.0, 0.0])
    assert trace.pending == Pending((ASKED,))
    trace.add_node(ASKED, [1])
    assert trace.pending is not None
    trace.add_node(ASKED, [1], sampled=True, logprobs=[0.0])
    assert trace.pending is None


def test_reward_is_the_weighted_sum_of_those_with_a_value() -> None:
    trace = Trace("t")
    assert trace.reward is None
    trace.set_reward("none", None)
    assert trace.reward is None
    trace.set_reward("a", 2)
    trace.set_reward("b", 0.5, weight=3.0)
    assert trace.reward == 3.5
    assert trace.rewards["b"] == Reward(0.5, 3.0)
    trace.remove_reward("a")
    assert trace.reward == 1.5
    with pytest.raises(KeyError):
        trace.remove_reward("a")


def test_what_did_not_change_is_not_journaled_again() -> None:
    trace = Trace("t")
    for _ in range(2):
        trace.set_reward("r", 1.0)
        trace.set_metric("m", 1.0)
        trace.info["i"] = [1]
        trace.set_ok(True)
        trace.set_stop("done")
        trace.set_tools("[]")
        trace.clear_pending()
    assert len(trace.journal.entries) == 6


def test_views_are_read_only() -> None:
    trace = Trace("t")
    trace.add_error(EpisodeError("E", "m"))
    with pytest.raises(TypeError):
        trace.rewards["a"] = Reward(1.0)  # type: ignore[index]
    with pytest.raises(AttributeError):
        trace.nodes.append(None)  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        trace.errors[0] = None  # type: ignore[index]
    assert trace.errors == [trace.errors[0]]
    assert trace.errors[-1:] == list(trace.errors)


def test_rewriting_errors_starts_a_generation() -> None:
    trace = Trace("t")
    trace.add_error(EpisodeError("Late", "m"))
    first = trace.journal
    trace.rewrite_errors([EpisodeError("Early", "m"), *trace.errors])
    assert [error.type for error in trace.errors] == ["Early", "Late"]
    assert (first.generation, trace.journal.generation, len(first.entries)) == (0, 1, 1)
    assert isinstance(trace.journal, Journal)


def test_finish_is_once_and_says_ok() -> None:
    trace = Trace("t")
    trace.set_pending([ASKED])
    trace.finish()
    finished = trace.finished_at
    assert finished is not None
    assert finished >= trace.started_at
    assert (trace.ok, trace.pending) == (True, None)
    count = len(trace.journal.entries)
    trace.finish()
    assert (trace.finished_at, len(trace.journal.entries)) == (finished, count)


def test_arrays_are_counted_repaired_and_dropped() -> None:
    trace = Trace("t")
    trace.add_node(ASKED, [1, 2], routed_experts=np.zeros((2, 3, 2), np.uint8))
    count = len(trace.journal.entries)
    assert trace.array_bytes == 12
    trace.repair_routing(0, 1, np.ones((3, 2), np.uint8))
    routing = trace.nodes[0].routed_experts
    assert routing is not None
    assert routing[:, 0, 0].tolist() == [0, 1]
    trace.drop_arrays()
    assert (trace.array_bytes, len(trace.journal.entries)) == (0, count)


def test_tools_and_names_are_checked() -> None:
    trace = Trace("t")
    trace.set_tools('[{"type":"function"}]')
    with pytest.raises(ValueError, match="tools holds a JSON dict"):
        trace.set_tools("{}")
    for attempt in (
        lambda: trace.set_stop("\ud800"),
        lambda: trace.set_metric("\ud800", 1),
        lambda: Trace("\ud800"),
    ):
        with pytest.raises(ValueError, match="lone surrogate"):
            attempt()
