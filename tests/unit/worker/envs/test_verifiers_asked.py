"""What was asked of an engine and did not come is said, and what it was sent in confidence is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from env_worker.arrays.checks import field_states
from env_worker.domain import Episode, SamplingParams, Trace
from env_worker.envs.verifiers.asked import Asked, missing_arrays
from env_worker.envs.verifiers.errors import ErrorRecords
from env_worker.envs.verifiers.settings import VerifiersSettings
from env_worker.envs.verifiers.trace_mirror import TraceMirror
from env_worker.model.dialects.base import EngineOptions
from env_worker.model.engine import Engine
from tests.helpers.fake_verifiers import FakeNode, FakeTrace, call, error, sampled_node, user

ENGINE = Engine("http://engine:8000/v1", "m")
ALL = frozenset({"routed_experts", "sampling_mask", "top_logprobs"})
TRAIN = VerifiersSettings("n", "f", {}, {"type": "train"})
EVAL = VerifiersSettings("n", "f", {})
NONE_TO_BE_HAD = dict.fromkeys(sorted(ALL), "none are to be had")


def missing(
    settings: VerifiersSettings = TRAIN,
    *,
    logprobs: int | None = None,
    arrays: frozenset[str] = frozenset(),
    heads: bool = True,
) -> dict[str, str]:
    return missing_arrays(
        SamplingParams(logprobs=logprobs), settings, EngineOptions(arrays), takes_heads=heads, version="0.4.0"
    )


def mirrored(theirs: FakeTrace, asked: Asked) -> tuple[TraceMirror, Trace]:
    errors = ErrorRecords(asked.engine.redacted)
    mirror = TraceMirror(Episode("e" * 32, "env", {}).new_trace(), theirs, asked, errors)
    mirror.sync()
    return mirror, mirror.ours


def incomplete(trace: Trace) -> Any:
    return trace.info.get("incomplete")


def whole_node(parent: int | None) -> FakeNode:
    """With all arrays that 0.4.0 has."""
    return sampled_node(
        parent,
        routed_experts=np.ones((4, 2, 2), np.uint8),
        sampling_mask=SimpleNamespace(ids=np.arange(1, 4, dtype=np.int32), counts=np.ones(3, np.int32)),
    )


def test_why_an_array_may_be_missing() -> None:
    assert missing() == missing(logprobs=0) == {}
    assert set(missing(arrays=ALL)) == ALL
    assert "--enable-return-routed-experts" in missing(arrays=ALL)["routed_experts"]
    assert "--return-sampling-mask" in missing(arrays=ALL)["sampling_mask"]
    assert "set logprobs" in missing(arrays=ALL)["top_logprobs"]
    assert missing(logprobs=2) == {"top_logprobs": "the engine gave no top log-probabilities"}
    assert "0.4.0 takes no heads" in missing(logprobs=2, heads=False)["top_logprobs"]
    assert set(missing(EVAL, arrays=ALL)) == ALL
    assert all("takes text only" in why for why in missing(EVAL, arrays=ALL).values())


def test_each_array_that_a_sampled_node_lacks_is_a_hole() -> None:
    theirs = FakeTrace(
        nodes=[FakeNode(user("ask")), sampled_node(0), FakeNode(user("more"), 1), whole_node(2)]
    )
    _, ours = mirrored(theirs, Asked(ENGINE, NONE_TO_BE_HAD))
    assert [dict(node.holes) for node in ours.nodes] == [
        {}, NONE_TO_BE_HAD, {}, {"top_logprobs": "none are to be had"}
    ]  # fmt: skip
    said = {"first_node": 1, "reason": "none are to be had"}
    assert incomplete(ours) == {
        "routed_experts": {"turns": 1, **said},
        "sampling_mask": {"turns": 1, **said},
        "top_logprobs": {"turns": 2, **said},
    }
    assert "none are to be had" in (field_states(ours.nodes, "routed_experts")[3].hole or "")


def test_text_alone_has_holes_too_and_an_answer_of_no_tokens_has_none_of_them() -> None:
    theirs = FakeTrace(nodes=[FakeNode(user("ask")), FakeNode(user("answer"), 0, sampled=True)])
    _, ours = mirrored(theirs, Asked(ENGINE, NONE_TO_BE_HAD))
    assert set(ours.nodes[1].holes) == ALL
    theirs = FakeTrace(nodes=[FakeNode(user("ask")), sampled_node(0, tokens=0)])
    _, ours = mirrored(theirs, Asked(ENGINE, NONE_TO_BE_HAD))
    assert set(ours.nodes[1].holes) == {"routed_experts"}


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (np.zeros((4, 2, 2), np.uint8), "all zero in 4 rows"),
        (np.full((4, 2, 2), 10, np.uint8), "holds expert 10, expected 0 to 9"),
        (np.ones((4, 2, 3), np.uint8), "was told (2, 2)"),
        (np.ones((3, 2, 2), np.uint8), "expected (4, layers, top_k)"),
    ],
)
def test_rows_that_cannot_be_are_a_hole_and_are_not_kept(rows: Any, reason: str) -> None:
    options = EngineOptions(experts=10, routing_shape=(2, 2))
    theirs = FakeTrace(nodes=[FakeNode(user("ask")), sampled_node(0, routed_experts=rows)])
    mirror, ours = mirrored(theirs, Asked(ENGINE, NONE_TO_BE_HAD, options))
    assert ours.nodes[1].routing is None
    assert reason in ours.nodes[1].holes["routed_experts"]
    assert incomplete(ours)["routed_experts"]["turns"] == 1
    theirs.nodes[1].routed_experts = rows.copy()  # bound anew, as where its last row is repaired
    mirror.sync()
    assert incomplete(ours)["routed_experts"]["turns"] == 1, "one node was counted twice"
    theirs.nodes[1].routed_experts = np.ones((4, 2, 2), np.uint8)
    mirror.sync()
    assert ours.nodes[1].routing is not None
    assert set(ours.nodes[1].holes) == set(incomplete(ours)) == {"sampling_mask", "top_logprobs"}


def test_a_single_row_of_expert_zero_may_be() -> None:
    rows = np.zeros((1, 1, 1), np.uint8)
    theirs = FakeTrace(nodes=[sampled_node(None, 1, 0, routed_experts=rows)])
    _, ours = mirrored(theirs, Asked(ENGINE))
    assert ours.nodes[0].routing is not None
    assert incomplete(ours) is None


def test_a_hole_in_one_stream_leaves_the_arrays() -> None:
    theirs = whole_node(None)
    theirs.is_content = np.zeros(9, np.bool_)
    _, ours = mirrored(FakeTrace(nodes=[theirs]), Asked(ENGINE, NONE_TO_BE_HAD))
    assert ours.nodes[0].sampling_mask is not None
    assert ours.nodes[0].routing is not None
    assert set(ours.nodes[0].holes) == {"is_content", "top_logprobs"}
    theirs = whole_node(None)
    theirs.mask = theirs.mask[1:]
    _, ours = mirrored(FakeTrace(nodes=[theirs]), Asked(ENGINE, NONE_TO_BE_HAD))
    assert set(ours.nodes[0].holes) == {"token_ids", *ALL}, "without its tokens nothing fits them"


def test_what_went_to_the_engine_in_confidence_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "sk-0123456789")
    engine = Engine(
        "http://engine:8000/v1", "m", headers={"x-tenant": "tenant-secret"}, key_variable="SOME_TOKEN"
    )
    failure = error("no such key: sk-0123456789, tenant-secret")
    failure.traceback = "in b'Bearer sk-0123456789'"
    node = sampled_node(None)
    span = SimpleNamespace(version="v7 of sk-0123456789", start=0, end=3)
    node.weight_versions = [span]  # type: ignore[attr-defined]
    answer = call(0)
    answer.model, answer.finish_reason = "m of sk-0123456789", "stop sk-0123456789"
    theirs = FakeTrace(nodes=[node], calls=[answer, call(None, failure)], errors=[failure])
    _, ours = mirrored(theirs, Asked(engine))
    answered, made = ours.calls
    assert (answered.model, answered.finish_reason) == ("m of ***", "stop ***")
    assert [span.version for span in answered.weight_versions] == ["v7 of ***"]
    assert made.error is not None
    for record in (made.error, *ours.errors):
        assert record.message == "no such key: ***, ***"
        assert record.traceback == "in b'Bearer ***'"
