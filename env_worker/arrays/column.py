"""One array of a trace as it lies in a segment: the part of each node, once."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from env_worker.arrays import crc32c
from env_worker.arrays.cut import Extent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from env_worker.arrays.cut import Read
    from env_worker.arrays.ends import Ends
    from env_worker.arrays.spec import ArraySpec
    from env_worker.domain import Node

STEP_BYTES: Final = 256 * 1024
"""How far apart the remembered checksums are: less than this is read to know the one at any position."""


class Column:
    """The parts of one array; a node's part serves every branch that holds the node.

    Positions count elements (rows of experts, counts, ids) from the root of a path. What is remembered are
    the checksums of all bytes from the root on: at the end of each node, and every `STEP_BYTES` inside it.
    The checksum between any two positions follows from two of them.

    Args:
        spec: which array.
        dtype: its little-endian numpy dtype. Nodes with a narrower one are widened.
        ends: where each node ends.
    """

    def __init__(self, spec: ArraySpec, dtype: str, ends: Ends) -> None:
        self.spec: Final = spec
        self.dtype: Final = dtype
        self.width: Final = np.dtype(dtype).itemsize
        self.ends: Final = ends
        self._parents: Final[dict[int, int | None]] = {}
        self._offsets: Final[dict[int, int]] = {}
        self._checksums: Final[dict[int, array[int]]] = {}
        self._sources: Final[dict[int, npt.NDArray[Any]]] = {}

    def place(self, order: Iterable[int], nodes: Sequence[Node], offset: int) -> int:
        """Give the parts of the nodes of `order` their places, one after the other from `offset` on, and
        return the end of the last. Every node comes after its parent.
        """
        for index in order:
            self._parents[index] = nodes[index].parent
            self._offsets[index] = offset
            source = self.spec.of(nodes[index])
            if source is not None and source.size:
                self._sources[index] = source
                offset += source.size * self.width
        return offset

    def write(self, memory: npt.NDArray[np.uint8]) -> None:
        """Copy every part to its place in `memory`, which is the segment, and let go of the nodes' arrays."""
        for index, parent in self._parents.items():
            start = 0 if parent is None else self._checksums[parent][-1]
            checksums = self._checksums[index] = array("I", [start])
            if index in self._sources:
                self._copy(self._sources.pop(index), memory[self._offsets[index] :], checksums)

    def extents(self, path: Sequence[int], start: int, end: int, element_bytes: int) -> tuple[Extent, ...]:
        """Where the elements from position `start` to `end` of `path` lie, in order; neighbours are one."""
        found: list[Extent] = []
        for node, begin, finish in self.ends.spans(path, start):
            low, high = max(start, begin), min(end, finish)
            if low < high:
                extent = Extent(
                    self._offsets[node] + (low - begin) * element_bytes, (high - low) * element_bytes
                )
                if found and sum(found[-1]) == extent.offset:
                    found[-1] = Extent(found[-1].offset, found[-1].length + extent.length)
                else:
                    found.append(extent)
            if finish >= end:
                break
        return tuple(found)

    def checksum(self, path: Sequence[int], start: int, end: int, element_bytes: int, read: Read) -> int:
        """CRC-32C of the bytes of the elements from position `start` to `end` of `path`."""
        if start == end:
            return 0
        before = self._checksum_before(path, start, element_bytes, read)
        until = self._checksum_before(path, end, element_bytes, read)
        return crc32c.cut_front(until, before, (end - start) * element_bytes)

    def _checksum_before(self, path: Sequence[int], position: int, element_bytes: int, read: Read) -> int:
        if not position:
            return 0
        node, begin, finish = self.ends.find(path, position)
        checksums = self._checksums[node]
        if position == finish:
            return checksums[-1]
        steps, rest = divmod(position - begin, _step(element_bytes))
        if not rest:
            return checksums[steps]
        offset = self._offsets[node] + (position - begin - rest) * element_bytes
        return crc32c.extend(checksums[steps], read(offset, rest * element_bytes))

    def _copy(self, source: npt.NDArray[Any], memory: npt.NDArray[np.uint8], checksums: array[int]) -> None:
        target = memory[: source.size * self.width].view(self.dtype).reshape(source.shape)
        step = _step(target.strides[0])
        for first in range(0, len(source), step):
            piece = target[first : first + step]
            piece[...] = source[first : first + step]
            # While it is in the cache still: read later, it would cost as much as the copy.
            checksums.append(crc32c.extend(checksums[-1], piece))


def _step(element_bytes: int) -> int:
    return max(1, STEP_BYTES // element_bytes)
