"""A hole is found, named by its node, and never anything else taken for one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from env_worker.arrays.checks import field_states, told_row_shape
from env_worker.domain import Message, SamplingMask, TopLogprobs, Trace


def routed(*rows: int, layers: int = 2, top_k: int = 2) -> np.ndarray[Any, Any]:
    """A row of that expert for each number: 0 is a row of zeros."""
    return np.array(rows, np.uint8).reshape(-1, 1, 1) * np.ones((1, layers, top_k), np.uint8)


def chain(*experts: np.ndarray[Any, Any] | int | None) -> Trace:
    """A trace of one branch: a node with these experts, or with so many tokens and none."""
    trace, parent = Trace("trace-0"), None
    for value in experts:
        tokens = value if isinstance(value, int) else 0 if value is None else len(value)
        array = value if isinstance(value, np.ndarray) else None
        parent = trace.add_node(Message("user"), range(tokens), parent=parent, routed_experts=array)
    return trace


def routing_hole(*experts: np.ndarray[Any, Any] | int | None) -> str | None:
    return field_states(chain(*experts).nodes, "routed_experts")[-1].hole


def sampled(field: str, *values: SamplingMask | TopLogprobs | int) -> Trace:
    """A trace of one branch: a sampled node with this value, or with so many sampled tokens and none."""
    trace, parent = Trace("trace-0"), None
    for value in values:
        tokens = value if isinstance(value, int) else len(value.counts)
        arrays: dict[str, Any] = {} if isinstance(value, int) else {field: value}
        parent = trace.add_node(Message("assistant"), range(tokens), parent=parent, sampled=True, **arrays)
    return trace


def mask(ids: list[int], counts: list[int]) -> SamplingMask:
    return SamplingMask(np.array(ids, np.int32), np.array(counts, np.int32))


def head(ids: list[int], logprobs: list[float], counts: list[int]) -> TopLogprobs:
    return TopLogprobs(np.array(ids, np.int32), np.array(logprobs, np.float32), np.array(counts, np.int32))


@pytest.mark.parametrize(
    "experts",
    [
        (routed(1, 2), routed(3)),
        (routed(1, 2), None, routed(), routed(3)),
        (routed(1, 0),),
        (routed(0),),
        (routed(1, 0), None, routed()),
        (routed(0, 1, 0, top_k=1), routed(0, top_k=1), routed(0, 0, 2, top_k=1)),
        (routed(layers=5, top_k=5), routed(1)),
        (routed(), None),
    ],
    ids=str,
)
def test_complete_routing(experts: tuple[np.ndarray[Any, Any] | None, ...]) -> None:
    assert routing_hole(*experts) is None


@pytest.mark.parametrize(
    ("experts", "hole"),
    [
        ((routed(1), 41), "node 1 of 41 tokens has no routed_experts"),
        ((3, routed(1)), "node 0 of 3 tokens has no routed_experts"),
        ((routed(1, 0, 2),), "node 0 of 3 tokens has a row of routed_experts that is all zero: row 1"),
        ((routed(0, 0),), "node 0 of 2 tokens has a row of routed_experts that is all zero: row 0"),
        (
            (routed(1, 0), None, routed(1)),
            "node 0 of 2 tokens has a last row of routed_experts that is all zero, and tokens follow it",
        ),
        ((routed(0, 0, top_k=1),), "node 0 of 2 tokens has routed_experts that are all zero"),
        (
            (routed(1), routed(1, layers=3)),
            "node 1 of 1 tokens has (layers, top_k) (3, 2), the nodes before it (2, 2)",
        ),
        (
            (routed(1, layers=0),),
            "node 0 of 1 tokens has routed_experts of shape (1, 0, 2), which holds no expert",
        ),
        ((7, None), "absent: no node of the trace has routed_experts"),
        ((None,), "absent: no node of the trace has routed_experts"),
    ],
)
def test_holes_in_routing(experts: tuple[Any, ...], hole: str) -> None:
    assert routing_hole(*experts) == hole


def test_a_row_that_is_zero_in_some_layers_is_no_hole() -> None:
    experts = routed(1, 1, 1)
    experts[:, 0] = 0
    assert routing_hole(experts, routed(1)) is None


def test_a_repaired_row_closes_the_hole() -> None:
    trace = chain(routed(1, 0), routed(1))
    assert field_states(trace.nodes, "routed_experts")[-1].hole is not None
    trace.repair_routing(0, 1, routed(5))
    assert field_states(trace.nodes, "routed_experts")[-1].hole is None


def in_order(experts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return experts


def spread(experts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same in memory that is not in order."""
    return np.repeat(experts, 2, axis=2)[:, :, ::2]


@pytest.mark.parametrize("memory", [in_order, spread])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize(("layers", "top_k"), [(48, 8), (3, 3), (5, 2), (1, 2)])
@pytest.mark.parametrize("row", [0, 498, 499, 500, 1198])
def test_one_row_of_many_that_is_all_zero_is_found(
    memory: Any, dtype: type, layers: int, top_k: int, row: int
) -> None:
    experts = routed(*[1] * 1200, layers=layers, top_k=top_k).astype(dtype)
    assert routing_hole(memory(experts)) is None
    experts[row] = 0
    hole = f"node 0 of 1200 tokens has a row of routed_experts that is all zero: row {row}"
    assert routing_hole(memory(experts)) == hole


@pytest.mark.parametrize("doubtful", [1, 100, 1200])
def test_a_row_is_empty_only_if_all_of_it_is_zero(doubtful: int) -> None:
    experts = routed(*[1] * 1200, layers=48, top_k=8)
    experts[:doubtful] = 0
    experts[:doubtful, 47, 7] = 1
    assert routing_hole(experts) is None
    experts[doubtful // 2] = 0
    assert str(routing_hole(experts)).endswith(f"that is all zero: row {doubtful // 2}")


def test_a_repair_that_is_all_zero_is_a_hole_and_one_over_it_closes_it() -> None:
    trace = chain(routed(*[1] * 100), routed(1))
    trace.repair_routing(0, 40, routed(0))
    trace.repair_routing(0, 20, routed(0))
    assert str(field_states(trace.nodes, "routed_experts")[0].hole).endswith("all zero: row 20")
    trace.repair_routing(0, 19, routed(3, 3))
    assert str(field_states(trace.nodes, "routed_experts")[0].hole).endswith("all zero: row 40")
    trace.repair_routing(0, 40, routed(3))
    assert field_states(trace.nodes, "routed_experts")[-1].hole is None


def test_a_hole_is_that_of_the_branches_through_it_and_the_first_one_is_told() -> None:
    trace = chain(routed(1), 2, 3)
    fork = trace.add_node(Message("user"), [1], parent=0, routed_experts=routed(2))
    states = field_states(trace.nodes, "routed_experts")
    assert [state.hole is None for state in states] == [True, False, False, True]
    assert states[1].hole == states[2].hole == "node 1 of 2 tokens has no routed_experts"
    assert states[fork].row_shape == (2, 2)


def test_the_last_row_of_one_branch_may_be_inside_another() -> None:
    trace = chain(routed(1, 0))
    end = trace.add_node(Message("user"), [], parent=0)
    inside = trace.add_node(Message("user"), [1], parent=0, routed_experts=routed(1))
    states = field_states(trace.nodes, "routed_experts")
    assert states[end].hole is None
    assert states[inside].hole is not None


def test_the_shape_of_a_branch_without_tokens_is_told_by_the_trace() -> None:
    assert told_row_shape(chain(routed(layers=9), None, routed(1, layers=3)).nodes) == (3, 2)
    assert told_row_shape(chain(None, routed(layers=9)).nodes) == (9, 2)
    with pytest.raises(LookupError, match="no node"):
        told_row_shape(chain(None, 3).nodes)


@pytest.mark.parametrize(
    "values",
    [
        (mask([5, 6], [2]), mask([7], [0, 1])),
        (mask([5], [1]), mask([], [])),
        (mask([0], [1]), 0),
    ],
    ids=str,
)
def test_complete_sampling_masks(values: tuple[SamplingMask | int, ...]) -> None:
    assert field_states(sampled("sampling_mask", *values).nodes, "sampling_mask")[-1].hole is None


@pytest.mark.parametrize(
    ("values", "hole"),
    [
        ((mask([1], [1]), 3), "node 1 of 3 sampled tokens has no sampling_mask"),
        ((mask([], [0, 0]),), "node 0 of 2 sampled tokens has sampling_mask.counts that are all zero"),
        ((mask([5, -3], [2]),), "node 0 of 1 sampled tokens has sampling_mask.ids with the negative id -3"),
        ((4,), "absent: no node of the trace has sampling_mask"),
    ],
)
def test_holes_in_sampling_masks(values: tuple[SamplingMask | int, ...], hole: str) -> None:
    assert field_states(sampled("sampling_mask", *values).nodes, "sampling_mask")[-1].hole == hole


def test_top_logprobs_may_be_infinite_but_not_nan() -> None:
    nan, infinite = float("nan"), float("-inf")
    sound = sampled("top_logprobs", head([1, 2], [-0.5, infinite], [2]))
    assert field_states(sound.nodes, "top_logprobs")[-1].hole is None
    holed = sampled("top_logprobs", head([1], [-0.5], [1]), head([1, 2], [-0.5, nan], [2]))
    assert field_states(holed.nodes, "top_logprobs")[-1].hole == (
        "node 1 of 1 sampled tokens has top_logprobs.logprobs with NaN at entry 1"
    )
    negative = sampled("top_logprobs", head([-1], [-0.5], [1]))
    assert "negative id -1" in (field_states(negative.nodes, "top_logprobs")[-1].hole or "")


def test_nodes_that_sampled_nothing_need_no_csr_fields() -> None:
    trace = sampled("sampling_mask", mask([1], [1]))
    end = trace.add_node(Message("user"), [1, 2], parent=0)
    assert field_states(trace.nodes, "sampling_mask")[end].hole is None


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("routed_experts", "2 tokens"),
        ("sampling_mask", "2 sampled tokens"),
        ("top_logprobs", "2 sampled tokens"),
    ],
)
def test_a_hole_has_its_reason(field: str, name: str) -> None:
    arrays: dict[str, Any] = {
        "routed_experts": routed(1, 2),
        "sampling_mask": mask([1], [1, 0]),
        "top_logprobs": head([1], [-0.5], [1, 0]),
    }
    trace, reason = Trace("trace-0"), "the engine gave 30 rows, expected 90"
    holes = {field: reason}
    trace.add_node(Message("assistant"), [1, 2], sampled=True, holes=holes)
    absent = field_states(trace.nodes, field)[-1].hole
    assert absent == f"absent: no node of the trace has {field}: {reason}"
    whole = trace.add_node(Message("assistant"), [1, 2], sampled=True, holes={"x": "y"}, **arrays)
    trace.add_node(Message("assistant"), [1, 2], parent=whole, sampled=True)
    silent = trace.add_node(Message("assistant"), parent=whole, sampled=True, holes=holes)
    states = [state.hole for state in field_states(trace.nodes, field)]
    assert states[:2] == [f"node 0 of {name} has no {field}: {reason}", None]
    assert states[2] == f"node 2 of {name} has no {field}"
    nothing = name.replace("2", "0")
    assert states[silent] == f"node {silent} of {nothing} has no {field}: {reason}", (
        "tokens may be missing too"
    )


def test_a_hole_that_was_filled_is_none() -> None:
    trace = Trace("trace-0")
    trace.add_node(Message("user"), [1], routed_experts=routed(1), holes={"routed_experts": "not yet"})
    assert field_states(trace.nodes, "routed_experts")[-1].hole is None


def test_no_nodes_no_states() -> None:
    assert field_states((), "routed_experts") == []
