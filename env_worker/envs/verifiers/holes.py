"""What the nodes of a trace lack, said on the nodes and in the trace's info."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.domain import Trace


class HoleTally:
    """Counts the nodes that lack a field that was asked for, or that came as it could not be taken."""

    def __init__(self, trace: Trace) -> None:
        self._trace: Final = trace
        self._said: Final[dict[str, dict[str, Any]]] = {}
        self._changed = False

    def add(self, index: int, holes: Mapping[str, str]) -> None:
        """Node `index` lacks the fields of `holes`, for the reasons that are their values."""
        if not holes:
            return
        node = self._trace.nodes[index]
        node.holes = {**node.holes, **holes}
        for name, reason in holes.items():
            said = self._said.setdefault(name, {"turns": 0, "first_node": index, "reason": reason})
            said["turns"] += 1
        self._changed = True

    def tell(self) -> None:
        """Write the tally to `info["incomplete"]`, where it has changed."""
        if self._changed:
            self._changed = False
            self._trace.info["incomplete"] = self._said
