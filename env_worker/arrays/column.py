"""One array of a trace as it lies in a segment: the part of each node, once."""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from env_worker.arrays import crc32c
from env_worker.arrays.cut import Extent
from env_worker.domain.routing import Routing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from env_worker.arrays.cut import Read
    from env_worker.arrays.ends import Ends
    from env_worker.arrays.spec import ArraySpec
    from env_worker.arrays.writer import Put
    from env_worker.domain import Node

STEP_BYTES: Final = 256 * 1024
"""How far apart the remembered checksums are: less than this is read to know the one at any position."""
_READ_BYTES: Final = 2**18
"""To make the pages of larger ones anew each time costs more than to sum them."""


class Column:
    """The parts of one array; a node's part serves every branch that holds the node.

    Positions count elements (rows of experts, counts, ids) from the root of a path. What is remembered are
    the checksums of all bytes from the root on: at the end of each node, and every `STEP_BYTES` inside it.
    The checksum between any two positions follows from two of them. A trace may have a million nodes, so
    there are few bytes for each and no objects.

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
        self._offsets: Final = array("q", bytes(8 * len(ends.parents)))
        self._checksums: Final = array("I", bytes(4 * len(ends.parents)))
        """At the end of each node."""
        self._steps: Final[dict[int, array[int]]] = {}
        """Inside those that are longer than a step, after each but the last."""
        self._runs: Final = array("I")
        """First and last node of each run of parts, as they lie in the segment, each behind its parent's."""
        self._end = 0
        """Of all parts in the segment."""
        self._parts: Final[list[tuple[int, npt.NDArray[Any] | Routing | None]]] = []
        """What is not written yet, by node."""

    def place(self, order: Iterable[int], nodes: Sequence[Node], offset: int) -> int:
        """Give the parts of the nodes of `order` their places, one after the other from `offset` on, and
        return the end of the last. Every node comes after its parent.
        """
        runs = self._runs
        for index in order:
            self._offsets[index] = offset
            if runs and runs[-1] == self.ends.parents[index]:
                runs[-1] = index
            else:
                runs.extend((index, index))
            source = self.spec.of(nodes[index])
            self._parts.append((index, source))
            if source is not None:
                offset += source.size * self.width
        self._end = offset
        return offset

    def write(self, put: Put) -> None:
        """Put every part at its place in the segment, and let go of the nodes' arrays."""
        for index, source in self._parts:
            checksum = self._checksum_at_begin(index)
            if source is not None and source.size:
                checksum = self._put(index, source, checksum, put)
            self._checksums[index] = checksum
        self._parts.clear()

    def is_intact(self, read: Read) -> bool:
        """Whether the segment has every part as it was put there, by the checksums. Reads them all, at most
        256 KiB in one call."""
        firsts, lasts = self._runs[::2], self._runs[1::2]
        ends = [*(self._offsets[first] for first in firsts[1:]), self._end]
        offset = self._offsets[firsts[0]]
        block, used = b"", 0
        for first, last, end in zip(firsts, lasts, ends, strict=True):
            checksum = self._checksum_at_begin(first)
            while offset < end:
                if used == len(block):
                    block, used = read(offset, min(_READ_BYTES, self._end - offset)), 0
                piece = block[used : used + end - offset]
                checksum = crc32c.extend(checksum, piece)
                used += len(piece)
                offset += len(piece)
            if checksum != self._checksums[last]:
                return False
        return True

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
        if position == finish:
            return self._checksums[node]
        steps, rest = divmod(position - begin, _step(element_bytes))
        checksum = self._steps[node][steps - 1] if steps else self._checksum_at_begin(node)
        if not rest:
            return checksum
        offset = self._offsets[node] + (position - begin - rest) * element_bytes
        return crc32c.extend(checksum, read(offset, rest * element_bytes))

    def _checksum_at_begin(self, node: int) -> int:
        parent = self.ends.parents[node]
        return 0 if parent < 0 else self._checksums[parent]

    def _put(self, index: int, source: npt.NDArray[Any] | Routing, checksum: int, put: Put) -> int:
        """The checksum at its end, from that at its begin."""
        step = _step(math.prod(source.shape[1:]) * self.width)
        offset = self._offsets[index]
        steps = array("I")
        for first in range(0, len(source), step):
            for piece in _pieces(source, first, min(first + step, len(source))):
                # The array's own memory, where that is in order and of the dtype.
                data = np.ascontiguousarray(piece, self.dtype).reshape(-1).view(np.uint8)
                put(offset, data.data)
                checksum = crc32c.extend(checksum, data)
                offset += len(data)
            steps.append(checksum)
        if len(steps) > 1:
            self._steps[index] = steps[:-1]
        return checksum


def _pieces(source: npt.NDArray[Any] | Routing, start: int, stop: int) -> Sequence[npt.NDArray[Any]]:
    return source.pieces(start, stop) if isinstance(source, Routing) else (source[start:stop],)


def _step(element_bytes: int) -> int:
    return max(1, STEP_BYTES // element_bytes)
