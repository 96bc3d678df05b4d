"""What verifiers lets through and is none: told as a hole, as where our own clients ask the engine."""

from __future__ import annotations

import random
import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from env_worker.domain import Episode, SamplingMask, TopLogprobs, Trace
from env_worker.envs.verifiers.asked import Asked
from env_worker.envs.verifiers.errors import ErrorRecords
from env_worker.envs.verifiers.sampled import sampled_first
from env_worker.envs.verifiers.trace_mirror import TraceMirror
from env_worker.model.engine import Engine
from env_worker.model.fields import masks
from tests.helpers.fake_verifiers import FakeNode, FakeTrace, call, sampled_node

ASKED = Asked(Engine("http://engine:8000/v1", "m"))


def mirrored(node: FakeNode, heads: Any = None) -> Trace:
    """`node`, of the sampled tokens 1, 2 and 3, as ours. `heads` is how many candidates were asked for."""
    theirs = FakeTrace(nodes=[node], calls=[call(0)])
    theirs.agent.config.sampling = SimpleNamespace(logprobs=heads)
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


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, None, 0, True])
@pytest.mark.parametrize("with_mask", [False, True])
def test_a_head_has_no_more_than_was_asked_for(heads: Any, with_mask: bool) -> None:
    """verifiers gives as many beside the sampled token, and where there is a mask all that it has."""
    support = {9: -1.0, 8: -2.0, 1: -3.0, 7: -4.0}
    ours = mirrored(
        node(
            logprobs=[-3.0, -7.0, -0.5],
            sampling_mask=mask([9, 8, 1, 7], [9, 8, 6, 7, 2], [3]) if with_mask else None,
            top_logprobs=head(support, {9: -1.0, 8: -2.0, 6: -3.0, 7: -4.0}, {3: -0.5}),
        ),
        heads,
    )
    most = heads if heads and heads is not True else 9
    assert [list(one) for one in heads_of(ours)] == [[1, 9, 8, 7][:most], [2, 9, 8, 6, 7][:most], [3]]
    assert [next(iter(one.values())) for one in heads_of(ours)] == [-3.0, -7.0, -0.5]
    assert incomplete(ours) == {}


def test_of_a_version_that_does_not_say_what_was_asked_for_all_are_taken() -> None:
    theirs = FakeTrace(nodes=[node(top_logprobs=head({1: -1.0, 9: -2.0}, {2: -0.5}, {3: -0.5}))])
    mirror = TraceMirror(Episode("e" * 32, "env", {}).new_trace(), theirs, ASKED, ErrorRecords())
    mirror.sync(final=True)
    assert heads_of(mirror.ours) == [{1: -1.0, 9: -2.0}, {2: -0.5}, {3: -0.5}]


def plainly(rows: list[dict[int, float]], sampled: list[int], logprobs: list[float], width: int) -> Any:
    """What `sampled_first` is to make of them."""
    made = []
    for row, own, logprob in zip(rows, sampled, logprobs, strict=True):
        value = row.get(own, logprob) if row else -9999.0
        others = [(one, of) for one, of in row.items() if one != own and of > -9999.0]
        made.append(dict([(own, value), *others][:width]) if value > -9999.0 else {})
    return made


def test_large_heads_are_checked_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)
    for _ in range(20):
        sampled = [chance.randrange(9) for _ in range(40)]
        logprobs = [-chance.randrange(9) / 8 for _ in sampled]
        rows = [
            {
                one: chance.choice([-9999.0, -1.0, -2.0])
                for one in chance.sample(range(9), chance.randrange(7))
            }
            for _ in sampled
        ]
        own = np.array(sampled, np.int32)
        for piece in (1, 2, 7, 50, 10_000):
            monkeypatch.setattr(masks, "_PIECE", piece)
            for width in (1, 3, 9):
                given = head(*rows)
                found = sampled_first(
                    TopLogprobs(given.ids, given.logprobs, given.counts),
                    own,
                    np.array(logprobs, np.float32),
                    width,
                )
                wanted = head(*plainly(rows, sampled, logprobs, width))
                assert found.ids.tolist() == wanted.ids.tolist()
                assert found.logprobs.tolist() == wanted.logprobs.tolist()
                assert found.counts.tolist() == wanted.counts.tolist()


def test_what_is_wrong_is_found_in_any_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "_PIECE", 1)
    lacking = mirrored(node(sampling_mask=mask([1], [2, 9], [9])))
    assert "of sampled token 2 lacks its own id 3" in incomplete(lacking)["sampling_mask"]
    negative = mirrored(node(sampling_mask=mask([1], [], [3, -7])))
    assert "holds the id -7" in incomplete(negative)["sampling_mask"]
    high = mirrored(node(top_logprobs=head({1: -0.5}, {2: -0.5}, {3: 0.7})))
    assert "holds 0.7" in incomplete(high)["top_logprobs"]
    last = mirrored(node(logprobs=(), top_logprobs=head({9: -0.5}, {}, {3: -0.5})))
    assert heads_of(last) == [{}, {}, {3: -0.5}]


def test_to_check_masks_takes_no_memory_by_their_size() -> None:
    tokens, kept = 40_000, 100
    sampled = np.arange(tokens, dtype=np.int32)
    ids = np.repeat(sampled, kept)
    counts = np.full(tokens, kept, np.int32)
    tracemalloc.start()
    try:
        masks.check_mask(SamplingMask(ids, counts), "mask", sampled)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert ids.nbytes == 16_000_000
    assert peak < 4_000_000, "a piece, and some for each token"


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
