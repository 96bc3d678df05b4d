"""Traces of any shape with training arrays, and what their branches must be, row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from env_worker.domain import TRAINING_ARRAY_FIELDS, Message, Node, SamplingMask, TopLogprobs, Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

NAMES = {
    "routed_experts": ["routed_experts"],
    "sampling_mask": ["sampling_mask.ids", "sampling_mask.counts"],
    "top_logprobs": ["top_logprobs.ids", "top_logprobs.logprobs", "top_logprobs.counts"],
}


@dataclass(frozen=True)
class NodePlan:
    """A node to add. `parent` counts back from the node before it, as far as there are any; None: a root."""

    parent: int | None
    tokens: int
    sampled: bool
    whole_mask: bool
    wide: bool
    missing: frozenset[str]
    repairs: int
    zeros: bool


@dataclass(frozen=True)
class TracePlan:
    """A trace to make; equal plans make equal traces."""

    nodes: list[NodePlan]
    layers: int
    top_k: int
    seed: int

    def trace(self) -> Trace:
        """The trace."""
        return self.write(Trace("trace-0"))

    def write(self, trace: Trace) -> Trace:
        """`trace`, with the nodes."""
        rng = np.random.default_rng(self.seed)
        for index, plan in enumerate(self.nodes):
            parent = None if plan.parent is None or not index else max(0, index - 1 - plan.parent)
            self._add(trace, plan, parent, rng)
        return trace

    def _add(self, trace: Trace, plan: NodePlan, parent: int | None, rng: np.random.Generator) -> None:
        mask = np.full(plan.tokens, plan.sampled)
        if plan.sampled and not plan.whole_mask:
            mask = rng.random(plan.tokens) < 0.5
        counts = rng.integers(0, 4, int(mask.sum()), dtype=np.int32)
        total = int(counts.sum())
        low = 0 if plan.zeros else 1
        experts = rng.integers(low, 4, (plan.tokens, self.layers, self.top_k), dtype=np.uint8)
        if plan.zeros and plan.tokens:
            experts[rng.integers(plan.tokens)] = 0
            experts[-1] = 0
        ids = rng.integers(0, 2**31, (2, total), dtype=np.int32)
        logprobs = -rng.random(total, dtype=np.float32)
        node = trace.add_node(
            Message("assistant" if plan.sampled else "user"),
            np.arange(plan.tokens),
            parent=parent,
            sampled=plan.sampled,
            mask=mask,
            routed_experts=experts.astype(np.uint16) * 200 if plan.wide else experts,
            sampling_mask=SamplingMask(ids[0], counts),
            top_logprobs=TopLogprobs(ids[1], logprobs, counts),
        )
        for field in plan.missing:
            setattr(trace.nodes[node], field, None)
        for _ in range(plan.repairs if plan.tokens and "routed_experts" not in plan.missing else 0):
            row = rng.integers(1, 300 if plan.wide else 256, (1, self.layers, self.top_k))
            trace.repair_routing(node, int(rng.integers(plan.tokens)), row)


node_plans = st.builds(
    NodePlan,
    parent=st.none() | st.sampled_from([0, 0, 0, 1, 2, 4]),
    tokens=st.sampled_from([0, 1, 2, 3, 7]),
    sampled=st.booleans(),
    whole_mask=st.booleans(),
    wide=st.integers(0, 9).map(lambda number: number == 9),
    missing=st.integers(0, 15).flatmap(
        lambda number: (
            st.frozensets(st.sampled_from(TRAINING_ARRAY_FIELDS)) if number == 15 else st.just(frozenset())
        )
    ),
    repairs=st.sampled_from([0, 0, 0, 1, 2]),
    zeros=st.integers(0, 7).map(lambda number: number == 7),
)
trace_plans = st.builds(
    TracePlan,
    nodes=st.lists(node_plans, max_size=9),
    layers=st.integers(1, 3),
    top_k=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)


def joined(nodes: Sequence[Node], name: str) -> npt.NDArray[Any]:
    """One array along a branch, by numpy alone."""
    field, _, attribute = name.partition(".")
    values = [value for node in nodes if (value := getattr(node, field)) is not None]
    return np.concatenate([getattr(value, attribute) if attribute else value for value in values])


def expected(
    trace: Trace, path: Sequence[int], fields: Sequence[str], start: int, end: int
) -> list[tuple[str, npt.NDArray[Any]]]:
    """The arrays of tokens `start` to `end`, token by token."""
    nodes = [trace.nodes[index] for index in path]
    mask = [bool(flag) for node in nodes for flag in node.mask]
    first, last = sum(mask[:start]), sum(mask[:end])
    found: list[tuple[str, npt.NDArray[Any]]] = []
    for field in fields:
        if field == "routed_experts":
            wide = any(
                node.routed_experts is not None and node.routed_experts.dtype == np.uint16
                for node in trace.nodes
            )
            rows = [node for node in nodes if len(node.token_ids)] or [
                node for node in trace.nodes if node.routed_experts is not None
            ]
            experts = joined(rows, field)[start:end]
            found.append((field, experts.astype("<u2" if wide else "u1")))
            continue
        having = [node for node in nodes if node.sampled_tokens]
        if not having:
            found += [
                (name, np.zeros(0, np.float32 if name.endswith("logprobs") else np.int32))
                for name in NAMES[field]
            ]
            continue
        counts = joined(having, f"{field}.counts")
        low, high = sum(counts[:first].tolist()), sum(counts[:last].tolist())
        for name in NAMES[field]:
            array = joined(having, name)
            found.append((name, array[first:last] if name.endswith("counts") else array[low:high]))
    return found


def is_complete(trace: Trace, path: Sequence[int], field: str) -> bool:
    """The rules of holes, row by row."""
    if all(getattr(node, field) is None for node in trace.nodes):
        return False
    rows: list[bool] = []
    for index in path:
        node = trace.nodes[index]
        if not (len(node.token_ids) if field == "routed_experts" else node.sampled_tokens):
            continue
        value = getattr(node, field)
        if value is None:
            return False
        if field != "routed_experts":
            if not any(value.counts.tolist()):
                return False
            continue
        empty = [not any(row.ravel().tolist()) for row in value]
        if value.shape[2] == 1:
            if len(empty) > 1 and all(empty):
                return False
        else:
            rows += empty
    return not any(rows[:-1])
