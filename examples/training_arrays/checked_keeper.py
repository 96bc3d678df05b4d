"""An `EpisodeHook` for the example: ArrayKeeper, and a checksum of each array that it keeps.

    env-worker serve --env synthetic --hook examples.training_arrays.checked_keeper:CheckedKeeper

The checksums are made from the nodes' arrays themselves, so they prove the whole way from here to a trainer.
No hook needs them: each fetch has a checksum of its own.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from env_worker import ArrayKeeper

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from env_worker import Episode
    from env_worker.domain import Node
    from env_worker.domain.sampling import SamplingParams


class CheckedKeeper(ArrayKeeper):
    """Leaves `trace.info["array_checksums"]` beside the references: leaf -> array -> SHA-256."""

    def keep(self, episode: Episode, sampling: SamplingParams) -> None:
        super().keep(episode, sampling)
        for trace in episode.traces:
            if trace.trainable:
                trace.info["array_checksums"] = {
                    str(branch[-1]): checksums([trace.nodes[index] for index in branch])
                    for branch in trace.branches()
                }


def checksums(nodes: Iterable[Node]) -> dict[str, str]:
    """Of each array along a branch: its nodes' arrays, end to end."""
    digests: dict[str, hashlib._Hash] = {}
    for node in nodes:
        for name, array in arrays_of(node):
            digests.setdefault(name, hashlib.sha256()).update(np.ascontiguousarray(array))
    return {name: digest.hexdigest() for name, digest in digests.items()}


def arrays_of(node: Node) -> Iterator[tuple[str, np.ndarray]]:
    """A node's training arrays, by the names under which they are fetched."""
    if node.routed_experts is not None:
        yield "routed_experts", node.routed_experts
    if node.sampling_mask is not None:
        yield "sampling_mask.ids", node.sampling_mask.ids
        yield "sampling_mask.counts", node.sampling_mask.counts
    if node.top_logprobs is not None:
        yield "top_logprobs.ids", node.top_logprobs.ids
        yield "top_logprobs.logprobs", node.top_logprobs.logprobs
        yield "top_logprobs.counts", node.top_logprobs.counts
