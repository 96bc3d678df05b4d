"""Says in the log that arrays are kept with a hole: once for each kind, for every episode may have it."""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING, Final

from env_worker.arrays.keeping import INFO_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from env_worker.domain import Episode

logger = logging.getLogger(__name__)

_NUMBER: Final = re.compile(r"\d+")
MAX_KINDS: Final = 100
"""Reasons may have words of an engine in them, of which there is no end."""


class HoleLog:
    """A kind is a field and a reason, whatever the numbers in it. Thread-safe."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._told: Final[set[tuple[str, str]]] = set()

    def tell(self, episode: Episode) -> None:
        """Log the holes that its references name, as far as their kind is new and not one of too many."""
        for trace_id, field, reason in _holes(episode):
            kind = field, _NUMBER.sub("#", reason)
            with self._lock:
                if kind in self._told or len(self._told) >= MAX_KINDS:
                    continue
                self._told.add(kind)
                last = len(self._told) == MAX_KINDS
            logger.warning(
                "episode=%.8s trace=%.64s kept with a hole: %s is not served for one branch or more: %s; "
                "further ones of %s are counted in envtrio_arrays_incomplete_fields_total and not "
                "logged; --array-strict makes such runs fail, --array-fields keeps less",
                episode.id, trace_id, field, reason, "any kind" if last else "this kind",
            )  # fmt: skip


def _holes(episode: Episode) -> Iterator[tuple[str, str, str]]:
    for trace in episode.traces:
        references = trace.info.get(INFO_KEY)
        for reference in references if isinstance(references, list) else ():
            holes = reference.get("incomplete") if isinstance(reference, dict) else None
            for field, reason in holes.items() if isinstance(holes, dict) else ():
                yield trace.id, field, str(reason)
