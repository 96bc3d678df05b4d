"""One branch of a trace as it lies in a segment."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from env_worker.arrays import crc32c
from env_worker.arrays.cut import Cut, CutArray
from env_worker.arrays.spec import Per, checked_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from env_worker.arrays.column import Column
    from env_worker.arrays.cut import Read
    from env_worker.arrays.ends import Ends
    from env_worker.domain import BoolArray

_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array of a whole branch."""

    name: str
    dtype: str
    """Little-endian numpy dtype: "u1", "<u2", "<i4", "<f4"."""
    shape: tuple[int, ...]
    """In C order."""
    size_bytes: int


class Tokens(NamedTuple):
    """The tokens of a trace's nodes."""

    ends: Ends
    """Counted in tokens."""
    sampled_ends: Ends
    """Counted in sampled tokens."""
    masks: Mapping[int, BoolArray]
    """Of the nodes of which some tokens were sampled and some not: which."""


class _Range(NamedTuple):
    start: int
    end: int


class BranchLayout:
    """One branch: what a reference says about it, and where each range of its tokens lies.

    Args:
        path: its nodes, from the root to the leaf.
        tokens: those of the trace.
        columns: of each of its complete fields; its counts come last.
        row_shape: `(layers, top_k)`, where `routed_experts` is complete.
        incomplete: why its other fields are not complete, by field.
    """

    __slots__ = ("_columns", "_path", "_row_shape", "_tokens", "incomplete", "leaf", "sampled", "tokens")

    def __init__(
        self,
        path: Sequence[int],
        tokens: Tokens,
        columns: Mapping[str, Sequence[Column]],
        row_shape: tuple[int, ...],
        incomplete: dict[str, str],
    ) -> None:
        self.leaf: Final = path[-1]
        """Index of its last node."""
        self.tokens: Final = tokens.ends[self.leaf]
        self.sampled: Final = tokens.sampled_ends[self.leaf]
        """How many of its tokens were sampled."""
        self.incomplete: Final = incomplete
        """Why a field may not be trained on, by field; those that are complete are not in it."""
        self._path: Final = array("I", path)
        self._tokens: Final = tokens
        self._columns: Final = columns
        self._row_shape: Final = row_shape

    @property
    def arrays(self) -> tuple[StoredArray, ...]:
        """The arrays of the complete fields."""
        return tuple(
            StoredArray(column.spec.name, column.dtype, shape, math.prod(shape) * column.width)
            for columns in self._columns.values()
            for column in columns
            for shape in (self._shape(column, column.ends[self.leaf]),)
        )

    def cut(self, fields: Sequence[str], start: int, end: int, read: Read) -> Cut:
        """What the tokens from `start` to `end` have of `fields`, after the layout was written.

        Of `routed_experts` their rows; of the CSR fields the counts of the sampled ones among them, and the
        entries of these. `read` gives bytes of the segment: counts of the nodes in which the range begins and
        ends, and less than `STEP_BYTES` of each array before either end; at most 1 MiB in one call.

        Raises ValueError if a field is unknown, named twice, not kept or incomplete, or if the range does not
        lie within the branch's tokens.
        """
        if not 0 <= start <= end <= self.tokens:
            raise ValueError(
                f"the tokens from {start} to {end} do not lie within the branch's {self.tokens} tokens; "
                f"ask for a range from 0 to {self.tokens}"
            )
        arrays: list[CutArray] = []
        checksum = 0
        for field in checked_fields(fields):
            for column, part in self._parts(field, _Range(start, end), read):
                shape = self._shape(column, part.end - part.start)
                size, element_bytes = math.prod(shape) * column.width, self._element_bytes(column)
                extents = column.extents(self._path, *part, element_bytes)
                arrays.append(CutArray(column.spec.name, column.dtype, shape, size, extents))
                following = column.checksum(self._path, *part, element_bytes, read)
                checksum = crc32c.combine(checksum, following, size)
        return Cut(tuple(arrays), sum(array.size_bytes for array in arrays), checksum)

    def _parts(self, field: str, tokens: _Range, read: Read) -> list[tuple[Column, _Range]]:
        """Which elements of each array of `field` a range of tokens has."""
        if field not in self._columns:
            why = self.incomplete.get(field, "this worker does not keep it")
            raise ValueError(f"{field} cannot be cut: {why}; ask for one of {list(self._columns)}")
        columns = self._columns[field]
        if columns[0].spec.per is Per.TOKEN:
            return [(columns[0], tokens)]
        sampled = _Range(self._sampled_before(tokens.start), self._sampled_before(tokens.end))
        *entries, counts = columns
        first, last = (self._entries_before(entries[0].ends, counts, at, read) for at in sampled)
        return [*((column, _Range(first, last)) for column in entries), (counts, sampled)]

    def _sampled_before(self, token: int) -> int:
        node, begin, end = self._tokens.ends.find(self._path, token)
        sampled = self._tokens.sampled_ends[node]
        if token == end:
            return sampled
        if (mask := self._tokens.masks.get(node)) is not None:
            return sampled - int(np.count_nonzero(mask[token - begin :]))
        return sampled - (end - token if self._tokens.sampled_ends.count(node) else 0)

    def _entries_before(self, ends: Ends, counts: Column, sampled: int, read: Read) -> int:
        """How many ids the first `sampled` sampled tokens have; reads counts of the node that this cuts."""
        if not sampled:
            return 0
        node, _, end = counts.ends.find(self._path, sampled)
        after = counts.extents(self._path, sampled, end, counts.width)
        return ends[node] - sum(_sum(read, *extent) for extent in after)

    def _shape(self, column: Column, length: int) -> tuple[int, ...]:
        return (length, *self._row_shape) if column.spec.per is Per.TOKEN else (length,)

    def _element_bytes(self, column: Column) -> int:
        return math.prod(self._shape(column, 1)) * column.width


def _sum(read: Read, offset: int, length: int) -> int:
    total = 0
    for first in range(0, length, _READ_BYTES):
        piece = read(offset + first, min(_READ_BYTES, length - first))
        total += int(np.frombuffer(piece, "<i4").sum(dtype=np.int64))
    return total
