"""What an array store has done and what it holds, as numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class ArrayCounters:
    """What a store has done. They only grow; see `ArrayStats`."""

    kept_episodes: int = 0
    kept_bytes: int = 0
    spilled_episodes: int = 0
    spilled_bytes: int = 0
    failed_keeps: int = 0
    incomplete_fields: dict[str, int] = field(default_factory=dict)
    refused_reservations: int = 0
    fetches: int = 0
    fetched_bytes: int = 0
    mapped_bytes: int = 0
    released_episodes: int = 0
    discarded_episodes: int = 0
    expired_episodes: int = 0


@dataclass(frozen=True, slots=True)
class ArrayStats:
    """A look at a store. Counters only grow; bytes are those of the segments, as the budget counts them,
    unless said otherwise."""

    # Counters.
    kept_episodes: int = 0
    """Episodes that were kept, also those without arrays."""
    kept_bytes: int = 0
    spilled_episodes: int = 0
    """Kept episodes of which at least one trace went to the spill folder."""
    spilled_bytes: int = 0
    failed_keeps: int = 0
    """Episodes of which nothing was kept, because of the budget, a hole (strict) or the system."""
    incomplete_fields: Mapping[str, int] = field(default_factory=dict)
    """Field to traces that were kept with a hole in it."""
    refused_reservations: int = 0
    fetches: int = 0
    """Fetches that were begun."""
    fetched_bytes: int = 0
    """Bytes of bodies that were sent."""
    mapped_bytes: int = 0
    """Bytes of bodies that callers were offered to map."""
    released_episodes: int = 0
    """Episodes that ended with the release of their last branch."""
    discarded_episodes: int = 0
    expired_episodes: int = 0

    # Gauges.
    held_episodes: int = 0
    held_memory_bytes: int = 0
    held_spill_bytes: int = 0
    limit_memory_bytes: int = 0
    limit_spill_bytes: int = 0
    reservations: int = 0
    """Runs that have room reserved."""
    reserved_bytes: int = 0
    """What these are taken to need: each as much as the largest recent episode."""
    open_fetches: int = 0
    oldest_age_seconds: float = 0.0
    """Age of the oldest held episode, from its keep on; 0 where none is held."""

    @property
    def held_bytes(self) -> int:
        """In memory and spilled."""
        return self.held_memory_bytes + self.held_spill_bytes

    @property
    def limit_bytes(self) -> int:
        """Of memory and spill folder together."""
        return self.limit_memory_bytes + self.limit_spill_bytes
