"""The routed experts of a node, of which later turns repair rows."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from env_worker.domain.arrays import RoutedExperts

_MOST_REPAIRS: Final = 16
"""So many are kept beside the array; then it is made anew."""
_LARGE_SHARE: Final = 8
"""Or as soon as they hold more than this part of its rows."""


class Repair(NamedTuple):
    """Rows that replace those of an array."""

    first: int
    """Where the first of them belongs."""
    rows: RoutedExperts


class Routing:
    """Expert ids `[rows, layers, top_k]`, uint8 or uint16: an array, and the rows that were repaired since.

    The usual repair is that of one row, each turn, which is not worth a copy of the others. What it holds
    never changes, nor do the arrays that it gives out. Thread-safe.

    Args:
        array: which nobody writes to any more.
        repairs: a later one goes before an earlier one. They lie within the array, and nobody writes to them.
    """

    __slots__ = ("_parts", "dtype", "shape")

    def __init__(self, array: RoutedExperts, repairs: tuple[Repair, ...] = ()) -> None:
        self.shape: Final[tuple[int, ...]] = array.shape
        self.dtype: Final[np.dtype[Any]] = np.result_type(array, *(repair.rows for repair in repairs))
        """That of the array, or of a repair, whichever is wider."""
        self._parts = (array, repairs)

    @property
    def parts(self) -> tuple[RoutedExperts, tuple[Repair, ...]]:
        """An array, and what replaces rows of it, a later one before an earlier one."""
        return self._parts

    @property
    def size(self) -> int:
        """How many expert ids there are."""
        return self._parts[0].size

    @property
    def nbytes(self) -> int:
        """Bytes of the whole."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def pieces(self, start: int, stop: int) -> list[RoutedExperts]:
        """The rows from `start` to `stop`, which lie within it, as arrays that follow each other. They are
        views, read-only, and may differ in dtype."""
        array, repairs = self._parts
        here = [one for one in repairs if one.first < stop and start < one.first + len(one.rows)]
        bounds = {start, stop}
        for first, rows in here:
            bounds |= {max(first, start), min(first + len(rows), stop)}
        found: list[RoutedExperts] = []
        for low, high in pairwise(sorted(bounds)):
            origin, rows = 0, array
            for one in here:
                if one.first <= low < one.first + len(one.rows):
                    origin, rows = one
            found.append(rows[low - origin : high - origin])
        return found

    def whole(self) -> RoutedExperts:
        """The array with its repairs, read-only. It is held from then on, in the place of its parts."""
        array, repairs = self._parts
        if repairs:
            array = array.astype(self.dtype)
            for first, rows in repairs:
                array[first : first + len(rows)] = rows
            array.flags.writeable = False
            self._parts = (array, ())  # in one step: another thread may read them
        return array

    def repaired(self, first: int, rows: RoutedExperts) -> Routing:
        """The same with a copy of `rows`, one or more, from `first` on, where they fit."""
        array, repairs = self._parts
        copied = rows.copy()
        copied.flags.writeable = False
        made = Routing(array, (*repairs, Repair(first, copied)))
        replaced = sum(len(repair.rows) for repair in repairs) + len(rows)
        if len(repairs) >= _MOST_REPAIRS or replaced * _LARGE_SHARE > len(self):
            made.whole()
        return made
