"""An ArrayKeeper that also remembers, by a way of its own, what each branch's arrays must be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from env_worker import ArrayKeeper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from env_worker.domain import Episode, Node, SamplingParams, Trace

Arrays = dict[str, "NDArray[Any]"]


class Branch:
    """A branch's arrays as plain concatenations, and what a range of its tokens must be."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.mask = np.concatenate([node.mask for node in nodes])
        self.routed_experts = np.concatenate([node.routed_experts for node in nodes])
        self.masks: list[NDArray[Any]] = []
        self.heads: list[tuple[NDArray[Any], NDArray[Any]]] = []
        for node in nodes:
            if node.sampling_mask is not None:
                self.masks += _split(node.sampling_mask.ids, node.sampling_mask.counts)
            if node.top_logprobs is not None:
                head = node.top_logprobs
                ids, values = _split(head.ids, head.counts), _split(head.logprobs, head.counts)
                self.heads += zip(ids, values, strict=True)

    @property
    def tokens(self) -> int:
        """How many."""
        return len(self.mask)

    def of(self, start: int, end: int) -> Arrays:
        """The arrays of the tokens [start, end)."""
        first, last = int(self.mask[:start].sum()), int(self.mask[:end].sum())
        masks, heads = self.masks[first:last], self.heads[first:last]
        return {
            "routed_experts": self.routed_experts[start:end],
            "sampling_mask.ids": _joined(masks, np.int32),
            "sampling_mask.counts": np.array([len(ids) for ids in masks], np.int32),
            "top_logprobs.ids": _joined([ids for ids, _ in heads], np.int32),
            "top_logprobs.logprobs": _joined([values for _, values in heads], np.float32),
            "top_logprobs.counts": np.array([len(ids) for ids, _ in heads], np.int32),
        }


class RememberingKeeper(ArrayKeeper):
    """`branches` by key, of every episode with all three arrays that was kept."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(**limits)
        self.branches: dict[str, Branch] = {}
        self.episodes: dict[str, Episode] = {}

    def keep(self, episode: Episode, sampling: SamplingParams) -> None:
        """Remember first: afterwards the nodes' arrays may be gone."""
        remembered = [
            (trace, [_branch(trace, path) for path in trace.branches()]) for trace in episode.traces
        ]
        super().keep(episode, sampling)
        for trace, branches in remembered:
            references: Any = trace.info["training_arrays"]
            for reference, branch in zip(references, branches, strict=True):
                self.branches[reference["key"]] = branch
                self.episodes[reference["key"]] = episode


def assert_equal(found: Arrays, expected: Arrays) -> None:
    """Byte for byte, with dtypes and shapes."""
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name


def _branch(trace: Trace, path: Sequence[int]) -> Branch:
    return Branch([trace.nodes[index] for index in path])


def _split(values: NDArray[Any], counts: NDArray[Any]) -> list[NDArray[Any]]:
    return np.split(values, np.cumsum(counts)[:-1]) if len(counts) else []


def _joined(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)
