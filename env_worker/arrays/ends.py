"""Where the nodes of a path begin and end, counted in tokens, in sampled tokens, or in ids."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class Span(NamedTuple):
    """The elements of one node on a path."""

    node: int
    begin: int
    """How many elements of the path lie before it."""
    end: int


class Ends:
    """How many elements there are from the root of each node to its end.

    It is the same on every path that holds the node, so a tree of paths needs one number a node, and a search
    along a path needs no list of its own.

    Args:
        parents: of each node, an earlier node or -1.
        counts: how many elements each node adds.
    """

    def __init__(self, parents: Sequence[int], counts: Iterable[int]) -> None:
        self.parents: Final = parents
        self._ends: Final = array("q")
        for parent, count in zip(parents, counts, strict=True):
            self._ends.append(count if parent < 0 else self._ends[parent] + count)

    def __getitem__(self, node: int) -> int:
        return self._ends[node]

    def count(self, node: int) -> int:
        """How many elements the node adds."""
        parent = self.parents[node]
        return self._ends[node] - (0 if parent < 0 else self._ends[parent])

    def find(self, path: Sequence[int], position: int) -> Span:
        """The first node of `path` that ends at `position` or after it. The path must not be shorter."""
        return next(self.spans(path, position))

    def spans(self, path: Sequence[int], position: int = 0) -> Iterator[Span]:
        """The nodes of `path` in order, from `find(path, position)` on."""
        first = bisect_left(path, position, key=self._ends.__getitem__)
        begin = self._ends[path[first - 1]] if first else 0
        for node in path[first:]:
            yield Span(node, begin, begin := self._ends[node])
