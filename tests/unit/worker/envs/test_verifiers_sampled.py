"""What verifiers lets through and is none: told as a hole, as where our own clients ask the engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from env_worker.domain import Episode, Trace
from env_worker.envs.verifiers.asked import Asked
from env_worker.envs.verifiers.errors import ErrorRecords
from env_worker.envs.verifiers.trace_mirror import TraceMirror
from env_worker.model.engine import Engine
from tests.helpers.fake_verifiers import FakeNode, FakeTrace, call, sampled_node

ASKED = Asked(Engine("http://engine:8000/v1", "m"))


def mirrored(node: FakeNode) -> Trace:
    """`node`, of the sampled tokens 1, 2 and 3, as ours."""
    theirs = FakeTrace(nodes=[node], calls=[call(0)])
    mirror = TraceMirror(Episode("e" * 32, "env", {}).new_trace(), theirs, ASKED, ErrorRecords())
    mirror.sync(final=True)
    return mirror.ours


def node(**fields: Any) -> FakeNode:
    found = sampled_node(None)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def incomplete(trace: Trace) -> dict[str, str]:
    told = {name: one["reason"] for name, one in trace.info.get("incomplete", {}).items()}
    assert told == dict(trace.nodes[0].holes)
    return told


def mask(*rows: list[int]) -> Any:
    return SimpleNamespace(
        ids=np.array([one for ids in rows for one in ids], np.int32),
        counts=np.array([len(ids) for ids in rows], np.int32),
    )


def head(*rows: dict[int, float]) -> Any:
    return SimpleNamespace(
        ids=np.array([one for found in rows for one in found], np.int32),
        logprobs=np.array([one for found in rows for one in found.values()], np.float32),
        counts=np.array([len(found) for found in rows], np.int32),
    )


def heads_of(trace: Trace) -> list[dict[int, float]]:
    found = trace.nodes[0].top_logprobs
    assert found is not None
    pairs = iter(zip(found.ids.tolist(), [round(one, 4) for one in found.logprobs.tolist()], strict=True))
    return [dict(next(pairs) for _ in range(count)) for count in found.counts.tolist()]


@pytest.mark.parametrize("lists", [True, False], ids=["0.4.0", "0.4.1"])
@pytest.mark.parametrize("value", [0.7, -9999.0, -1e300, float("nan"), float("-inf"), float("inf")])
def test_a_log_probability_that_is_none(value: float, lists: bool) -> None:
    given = [-0.5, value, -0.5]
    ours = mirrored(node(logprobs=given if lists else np.array(given)))
    assert len(ours.nodes[0].logprobs) == 0
    assert ours.nodes[0].mask.tolist() == [False, True, True, True], "the ids are what they are"
    assert "1 of 3 log-probabilities are missing or none" in incomplete(ours)["logprobs"]


def test_what_is_above_zero_by_rounding_alone_is_one() -> None:
    ours = mirrored(node(logprobs=[-0.5, 1e-6, -9998.0]))
    assert (len(ours.nodes[0].logprobs), incomplete(ours)) == (3, {})


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([[1, 7], [7, 8], [3]], "of sampled token 1 lacks its own id 2"),
        ([[], [], []], "is empty for all 3 sampled tokens"),
        ([[1, -7], [2], [3]], "holds the id -7"),
        ([[1], [2]], "has length 2, expected 3"),
    ],
)
def test_a_mask_that_is_none(rows: list[list[int]], reason: str) -> None:
    ours = mirrored(node(sampling_mask=mask(*rows)))
    assert ours.nodes[0].sampling_mask is None
    assert reason in incomplete(ours)["sampling_mask"]


def test_a_token_may_have_no_mask() -> None:
    ours = mirrored(node(sampling_mask=mask([9, 1], [], [3])))
    assert ours.nodes[0].sampling_mask is not None
    assert incomplete(ours) == {}


def test_the_sampled_token_is_the_first_of_its_head() -> None:
    """verifiers ranks them, and leaves it out where its rank is below what was asked for."""
    ours = mirrored(
        node(
            logprobs=[-0.25, -0.5, -3.0],
            top_logprobs=head({1: -0.25, 8: -2.0}, {9: -0.25, 7: -0.375, 2: -0.5}, {9: -0.25, 8: -2.0}),
        )
    )
    assert [list(one.items()) for one in heads_of(ours)] == [
        [(1, -0.25), (8, -2.0)], [(2, -0.5), (9, -0.25), (7, -0.375)], [(3, -3.0), (9, -0.25), (8, -2.0)]
    ]  # fmt: skip
    assert incomplete(ours) == {}


def test_where_it_is_not_known_nothing_stands_for_it() -> None:
    given = head({9: -0.25}, {2: -0.5}, {3: -9999.0, 8: -2.0})
    ours = mirrored(node(logprobs=[0.7, -0.5, -3.0], top_logprobs=given))
    assert heads_of(ours) == [{}, {2: -0.5}, {}]
    assert set(incomplete(ours)) == {"logprobs"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (head({1: 0.7}, {2: -0.5}, {3: -0.5}), "holds 0.7, which is no log-probability"),
        (head({1: -0.5, -7: -1.0}, {2: -0.5}, {3: -0.5}), "holds the id -7"),
        (head({1: -9999.0}, {2: float("nan")}, {}), "no candidate with a value for any of 3"),
        (head({1: -0.5}), "has length 1, expected 3"),
    ],
)
def test_a_head_that_is_none(given: Any, reason: str) -> None:
    ours = mirrored(node(top_logprobs=given))
    assert ours.nodes[0].top_logprobs is None
    assert reason in incomplete(ours)["top_logprobs"]


@pytest.mark.parametrize("wrong", [2**31, -1, 2**70])
def test_ids_that_are_none(wrong: int) -> None:
    ours = mirrored(node(token_ids=[0, 1, 2, wrong], sampling_mask=mask([1], [2], [3])))
    assert (len(ours.nodes[0].token_ids), ours.nodes[0].message.text) == (0, "answer")
    assert set(incomplete(ours)) == {"token_ids", "sampling_mask"}


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        ([("v7", 0, 2)], "covers 2 sampled tokens, expected 3"),
        ([("v7", 2, 1)], "has a span from 2 to 1"),
        ([("v7", 0, 9)], "has a span from 0 to 9"),
        ([("v7", -1, 3)], "has a span from -1 to 3"),
    ],
)
def test_weight_versions_that_do_not_fit_fail_no_episode(
    spans: list[tuple[str, int, int]], reason: str
) -> None:
    given = [SimpleNamespace(version=name, start=start, end=end) for name, start, end in spans]
    ours = mirrored(node(weight_versions=given))
    assert ours.calls[0].weight_versions == ()
    assert reason in incomplete(ours)["weight_versions"]


def test_weight_versions_that_fit() -> None:
    given = [SimpleNamespace(version=f"v{i}\ud800", start=i, end=i + 1) for i in range(3)]
    ours = mirrored(node(weight_versions=given))
    assert [(one.version, one.start, one.end) for one in ours.calls[0].weight_versions] == [
        ("v0?", 0, 1), ("v1?", 1, 2), ("v2?", 2, 3)
    ]  # fmt: skip
    assert incomplete(ours) == {}
