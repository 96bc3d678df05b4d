"""The nodes of a trace as a graph: branches, and what is asked of all nodes."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from env_worker.domain.views import ListView

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from env_worker.domain.arrays import Int32Array
    from env_worker.domain.node import Node


class NodeGraph:
    """Nodes whose parents are earlier nodes. A path from a root to a leaf is a branch."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self.nodes: Sequence[Node] = ListView(self._nodes)

    def branches(self) -> list[tuple[int, ...]]:
        """Each branch as its node indices from root to leaf, in the order of the leaves."""
        parents = {node.parent for node in self._nodes}
        return [self.path(index) for index in range(len(self._nodes)) if index not in parents]

    def path(self, leaf: int) -> tuple[int, ...]:
        """Node indices from the root to node `leaf`, which may be any node. ValueError if there is none."""
        indices: list[int] = []
        index: int | None = self._node_index(leaf, "leaf")
        while index is not None:
            indices.append(index)
            index = self._nodes[index].parent
        return tuple(reversed(indices))

    def token_ids(self, leaf: int) -> Int32Array:
        """int32 `[tokens]`: what the model saw from the root to the end of node `leaf`."""
        return np.concatenate([self._nodes[index].token_ids for index in self.path(leaf)])

    def repair_routing(self, node_index: int, row: int, values: npt.NDArray[Any]) -> None:
        """Replace rows of an earlier node's `routed_experts`; see `Node.repair_routing`. Streams nothing."""
        self._nodes[self._node_index(node_index, "node_index")].repair_routing(row, values)

    def drop_arrays(self) -> None:
        """Forget the training arrays of every node."""
        for node in self._nodes:
            node.drop_arrays()

    @property
    def array_bytes(self) -> int:
        """Bytes of the training arrays that the nodes hold."""
        return sum(node.array_bytes for node in self._nodes)

    def _optional_index(self, index: int | None, what: str) -> int | None:
        return None if index is None else self._node_index(index, what)

    def _node_index(self, index: int, what: str) -> int:
        index = operator.index(index)
        if not 0 <= index < len(self._nodes):
            raise ValueError(
                f"{what} is {index}, expected the index of one of the {len(self._nodes)} nodes of {self!r}, "
                "counted from 0; use what add_node returned"
            )
        return index
