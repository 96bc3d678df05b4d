"""What the nodes of a trace lack, said on the nodes and in the trace's info."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.domain import Trace


class HoleTally:
    """Counts the nodes that lack a field that was asked for, or that came as it could not be taken."""

    def __init__(self, trace: Trace) -> None:
        self._trace: Final = trace
        self._reasons: Final[dict[str, dict[int, str]]] = {}
        """By field and node."""
        self._changed = False

    def add(self, index: int, holes: Mapping[str, str]) -> None:
        """Node `index` lacks the fields of `holes`, for the reasons that are their values."""
        if not holes:
            return
        node = self._trace.nodes[index]
        node.holes = {**node.holes, **holes}
        for name in holes:
            self._reasons.setdefault(name, {})[index] = node.holes[name]  # mended and cut there
        self._changed = True

    def mend(self, index: int, name: str) -> None:
        """Node `index` has got the field."""
        if self._reasons.get(name, {}).pop(index, None) is None:
            return
        node = self._trace.nodes[index]
        node.holes = {field: reason for field, reason in node.holes.items() if field != name}
        self._changed = True

    def tell(self) -> None:
        """Write the tally to `info["incomplete"]`, where it has changed."""
        if not self._changed:
            return
        self._changed = False
        said = {
            name: {"turns": len(found), "first_node": (first := min(found)), "reason": found[first]}
            for name, found in self._reasons.items()
            if found
        }
        if said:
            self._trace.info["incomplete"] = said
        else:
            self._trace.info.pop("incomplete", None)
