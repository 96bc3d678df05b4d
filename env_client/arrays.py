"""Numpy views of an episode's token streams, without a copy where there need not be one.

Views are read-only and keep their bytes alive. A *branch* is a root-to-leaf tuple of node indices: its nodes'
tokens, end to end, are exactly what the model saw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from envtrio.v1.episode_pb2 import Episode, Node, Trace
    from numpy.typing import NDArray

TOKEN_DTYPE: Final = np.dtype("<i4")
LOGPROB_DTYPE: Final = np.dtype("<f4")
FLAG_DTYPE: Final = np.dtype(np.bool_)

_Scalar = TypeVar("_Scalar", bound=np.generic)


def token_ids(node: Node) -> NDArray[np.int32]:
    """The node's tokens: int32 `[tokens]`, a view."""
    return np.frombuffer(node.token_ids, TOKEN_DTYPE)


def mask(node: Node) -> NDArray[np.bool_]:
    """Which of the node's tokens the model sampled: bool `[tokens]`, a view."""
    return np.frombuffer(node.mask, FLAG_DTYPE)


def is_content(node: Node) -> NDArray[np.bool_] | None:
    """Which tokens belong to the message's body: bool `[tokens]`, a view. None where it is not known."""
    return np.frombuffer(node.is_content, FLAG_DTYPE) if node.is_content or not node.token_ids else None


def logprobs(node: Node) -> NDArray[np.float32] | None:
    """Log-probabilities of the sampled tokens: float32 `[sum(mask)]`, a view. None where there are none."""
    if not node.logprobs and node.mask.count(1):
        return None
    return np.frombuffer(node.logprobs, LOGPROB_DTYPE)


def branch(trace: Trace, leaf: int) -> tuple[int, ...]:
    """Node indices from the root to `leaf`, both included.

    Raises:
        IndexError: `leaf` is not a node of the trace.
    """
    nodes = trace.nodes
    if not 0 <= leaf < len(nodes):
        raise IndexError(f"leaf {leaf} is no node of a trace with {len(nodes)}: take the end of a branch")
    path = [leaf]
    while (node := nodes[path[-1]]).HasField("parent"):
        path.append(node.parent)
    return tuple(reversed(path))


def branches(trace: Trace) -> list[tuple[int, ...]]:
    """All branches of a checked trace, ordered by leaf. Empty for a trace without nodes."""
    parents = {node.parent for node in trace.nodes if node.HasField("parent")}
    return [branch(trace, index) for index in range(len(trace.nodes)) if index not in parents]


def branch_token_ids(trace: Trace, leaf: int) -> NDArray[np.int32]:
    """What the model saw up to and with `leaf`: int32 `[tokens]`, a new array."""
    return _along(trace, leaf, TOKEN_DTYPE, token_ids)


def branch_mask(trace: Trace, leaf: int) -> NDArray[np.bool_]:
    """Which tokens of the branch the model sampled: bool `[tokens]`, a new array."""
    return _along(trace, leaf, FLAG_DTYPE, mask)


def branch_is_content(trace: Trace, leaf: int) -> NDArray[np.bool_] | None:
    """`is_content` along the branch: bool `[tokens]`, a new array. None where a node does not know it."""
    return _along_if_known(trace, leaf, FLAG_DTYPE, is_content)


def branch_logprobs(trace: Trace, leaf: int) -> NDArray[np.float32] | None:
    """`logprobs` along the branch: float32 `[sum(mask)]`, a new array. None where a node has none."""
    return _along_if_known(trace, leaf, LOGPROB_DTYPE, logprobs)


def reward(trace: Trace) -> float | None:
    """Sum of value * weight over the rewards that have a value. None where none has: that is not zero."""
    judged = [entry.value * entry.weight for entry in trace.rewards.values() if entry.HasField("value")]
    return sum(judged) if judged else None


def episode_reward(episode: Episode) -> float | None:
    """Sum of the trainable traces' rewards, or of all traces' where none is trainable. None: not judged."""
    trainable = [trace for trace in episode.traces if trace.header.trainable]
    judged = [value for trace in trainable or episode.traces if (value := reward(trace)) is not None]
    return sum(judged) if judged else None


def _along(
    trace: Trace, leaf: int, dtype: np.dtype[_Scalar], view: Callable[[Node], NDArray[_Scalar]]
) -> NDArray[_Scalar]:
    nodes = trace.nodes
    pieces = [view(nodes[index]) for index in branch(trace, leaf)]
    return np.concatenate(pieces, dtype=dtype)


def _along_if_known(
    trace: Trace, leaf: int, dtype: np.dtype[_Scalar], view: Callable[[Node], NDArray[_Scalar] | None]
) -> NDArray[_Scalar] | None:
    nodes, path = trace.nodes, branch(trace, leaf)
    pieces = [piece for index in path if (piece := view(nodes[index])) is not None]
    return np.concatenate(pieces, dtype=dtype) if len(pieces) == len(path) else None
