"""Numpy views, branches and rewards."""

from __future__ import annotations

import numpy as np
import pytest
from envtrio.v1.episode_pb2 import Episode, Node, Trace

from env_client import arrays
from tests.helpers.deltas import sampled_node, tokens


def forked() -> Trace:
    """0 - 1 - 2, and 3 beside 1; 4 is a root of its own."""
    trace = Trace()
    trace.nodes.add(token_ids=tokens(1, 2), mask=b"\0\0", is_content=b"\0\1")
    trace.nodes.append(sampled_node(0, 1))
    trace.nodes.append(sampled_node(1, 2))
    trace.nodes.append(sampled_node(0, 3))
    trace.nodes.add()
    return trace


def test_views_copy_nothing_and_are_read_only() -> None:
    node = sampled_node(None, 3)
    for view, dtype in (
        (arrays.token_ids(node), np.int32),
        (arrays.mask(node), np.bool_),
        (arrays.is_content(node), np.bool_),
        (arrays.logprobs(node), np.float32),
    ):
        assert view is not None
        assert view.dtype == dtype
        assert view.shape == (3,)
        assert view.base is not None
        assert not view.flags.writeable
    assert arrays.token_ids(node).tolist() == [0, 1, 2]
    assert arrays.mask(node).all()


def test_what_is_not_known_is_none() -> None:
    node = sampled_node(None, 3)
    node.is_content, node.logprobs = b"", b""
    assert arrays.is_content(node) is None
    assert arrays.logprobs(node) is None


def test_a_node_without_tokens_has_empty_arrays() -> None:
    for view in (arrays.token_ids, arrays.mask, arrays.is_content, arrays.logprobs):
        array = view(Node())
        assert array is not None
        assert array.size == 0


def test_branches() -> None:
    trace = forked()
    assert arrays.branches(trace) == [(0, 1, 2), (0, 3), (4,)]
    assert arrays.branches(Trace()) == []
    assert arrays.branch_token_ids(trace, 2).tolist() == [1, 2, 0, 0, 1]
    assert arrays.branch_mask(trace, 3).tolist() == [False, False, True, True, True]
    content, logprobs = arrays.branch_is_content(trace, 2), arrays.branch_logprobs(trace, 2)
    assert content is not None
    assert content.tolist() == [False, True, True, True, True]
    assert logprobs is not None
    assert logprobs.dtype == np.float32
    assert len(logprobs) == 3


def test_branches_with_a_gap_are_none() -> None:
    trace = forked()
    trace.nodes[1].is_content, trace.nodes[1].logprobs = b"", b""
    assert arrays.branch_is_content(trace, 2) is None
    assert arrays.branch_logprobs(trace, 2) is None
    assert arrays.branch_logprobs(trace, 3) is not None


@pytest.mark.parametrize("leaf", [-1, 5])
def test_a_leaf_that_is_no_node(leaf: int) -> None:
    with pytest.raises(IndexError, match=f"leaf {leaf} is no node of a trace with 5"):
        arrays.branch(forked(), leaf)


def judged(*entries: tuple[float | None, float], trainable: bool = True) -> Trace:
    trace = Trace()
    trace.header.trainable = trainable
    for number, (value, weight) in enumerate(entries):
        trace.rewards[str(number)].weight = weight
        if value is not None:
            trace.rewards[str(number)].value = value
    return trace


def test_rewards() -> None:
    assert arrays.reward(judged((2.0, 0.5), (1.0, 3.0), (None, 9.0))) == 4.0
    assert arrays.reward(judged((0.0, 1.0))) == 0.0
    # Not judged is not zero.
    assert arrays.reward(judged((None, 1.0))) is None
    assert arrays.reward(Trace()) is None


def test_episode_rewards() -> None:
    agent, judge = judged((1.0, 1.0)), judged((5.0, 1.0), trainable=False)
    assert arrays.episode_reward(Episode(traces=[agent, judge])) == 1.0
    assert arrays.episode_reward(Episode(traces=[judge])) == 5.0
    assert arrays.episode_reward(Episode(traces=[judged((None, 1.0)), judge])) is None
    assert arrays.episode_reward(Episode()) is None
