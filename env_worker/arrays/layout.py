"""A trace's training arrays as one segment, in which all its branches share what they have in common."""

from __future__ import annotations

from array import array
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from env_worker.arrays.branch import BranchLayout, Tokens
from env_worker.arrays.checks import FieldState, field_states, told_row_shape
from env_worker.arrays.column import Column
from env_worker.arrays.ends import Ends
from env_worker.arrays.spec import FIELD_ARRAYS, ROUTED_EXPERTS, WIDE_EXPERTS, ArraySpec, Per, checked_fields

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from env_worker.arrays.cut import Read
    from env_worker.arrays.writer import Put
    from env_worker.domain import Node, Trace

HEADER_BYTES: Final = 4096
"""Of a segment; what is in them is not the layout's business."""
_ALIGNMENT: Final = 64


class TraceLayout:
    """Which bytes of a segment are which array of which branch.

    Made by `of`, then written once. Until then it holds the nodes' training arrays, from then on only what is
    small: token counts, masks, checksums.
    """

    def __init__(self, size: int, branches: tuple[BranchLayout, ...], columns: Sequence[Column]) -> None:
        self.size: Final = size
        """Bytes of the segment, its header included."""
        self.branches: Final = branches
        """In the order of `trace.branches()`."""
        self.incomplete: Final = {
            field: reason for branch in reversed(branches) for field, reason in branch.incomplete.items()
        }
        """Fields that a branch has not got, each with the reason of the first such branch."""
        self._columns: Final = columns
        self._written = False

    @classmethod
    def of(cls, trace: Trace, fields: Collection[str]) -> TraceLayout:
        """The layout of `fields` of `trace`, as its nodes are now. A node's part is in the segment once, if a
        branch that holds the node has the field complete (`field_states` has the rules).

        Raises ValueError if a field is unknown or named twice.
        """
        nodes, paths = trace.nodes, trace.branches()
        parents = array("q", (-1 if node.parent is None else node.parent for node in nodes))
        tokens = _tokens(nodes, parents)
        states = {field: field_states(nodes, field) for field in checked_fields(fields)}
        columns: dict[str, list[Column]] = {}
        offset = HEADER_BYTES
        for field, field_state in states.items():
            order = _once_each(path for path in paths if field_state[path[-1]].hole is None)
            columns[field] = []
            if not order:
                continue  # no branch has it
            ids = _ids(field, nodes, parents)
            for spec in FIELD_ARRAYS[field]:
                column = Column(spec, _dtype(spec, nodes), _ends(spec, tokens, ids))
                offset = column.place(order, nodes, -(-offset // _ALIGNMENT) * _ALIGNMENT)
                columns[field].append(column)
        branches = tuple(
            _branch(path, nodes, tokens, columns, {field: found[path[-1]] for field, found in states.items()})
            for path in paths
        )
        return cls(offset, branches, list(chain.from_iterable(columns.values())))

    def write(self, put: Put) -> None:
        """Put all arrays into the segment, in pieces of at most a few hundred KiB (or one row, where that is
        more). The header is left alone. Afterwards no array of a node is referenced.

        Raises ValueError if this was called before, and whatever `put` raises.
        """
        if self._written:
            raise ValueError("this layout was written before, and has let go of the arrays; make a new one")
        self._written = True
        for column in self._columns:
            column.write(put)

    def is_intact(self, read: Read) -> bool:
        """Whether the segment, which `read` reads, has all arrays as `write` has put them there, by their
        checksums. Reads all of them, at most 256 KiB in one call. Raises whatever `read` raises."""
        return all(column.is_intact(read) for column in self._columns)


def _tokens(nodes: Sequence[Node], parents: Sequence[int]) -> Tokens:
    return Tokens(
        Ends(parents, (len(node.token_ids) for node in nodes)),
        Ends(parents, (node.sampled_tokens for node in nodes)),
        {
            index: node.mask
            for index, node in enumerate(nodes)
            if 0 < node.sampled_tokens < len(node.token_ids)
        },
    )


def _ids(field: str, nodes: Sequence[Node], parents: Sequence[int]) -> Ends | None:
    """Where the entries of a CSR field end, which all its arrays of entries have in common."""
    spec = FIELD_ARRAYS[field][0]
    if spec.per is not Per.ID:
        return None
    arrays = (spec.of(node) for node in nodes)
    return Ends(parents, (0 if ids is None else len(ids) for ids in arrays))


def _ends(spec: ArraySpec, tokens: Tokens, ids: Ends | None) -> Ends:
    if spec.per is Per.ID and ids is not None:
        return ids
    return tokens.ends if spec.per is Per.TOKEN else tokens.sampled_ends


def _dtype(spec: ArraySpec, nodes: Sequence[Node]) -> str:
    wide = spec is ROUTED_EXPERTS and any(
        node.routing is not None and node.routing.dtype == np.uint16 for node in nodes
    )
    return WIDE_EXPERTS if wide else spec.dtype


def _once_each(paths: Iterable[Sequence[int]]) -> list[int]:
    """The nodes of `paths`, each at its first place: so the first path is one run, and any other a few."""
    return list(dict.fromkeys(chain.from_iterable(paths)))


def _branch(
    path: tuple[int, ...],
    nodes: Sequence[Node],
    tokens: Tokens,
    columns: Mapping[str, Sequence[Column]],
    states: Mapping[str, FieldState],
) -> BranchLayout:
    complete = {field: columns[field] for field, state in states.items() if state.hole is None}
    row_shape: tuple[int, ...] = ()
    if ROUTED_EXPERTS.field in complete:
        row_shape = states[ROUTED_EXPERTS.field].row_shape or told_row_shape(nodes)
    incomplete = {field: state.hole for field, state in states.items() if state.hole is not None}
    return BranchLayout(path, tokens, complete, row_shape, incomplete)
