"""Cancels that came before their run."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from env_broker.route import RoutesFullError


class RememberedCancels:
    """The ids of unknown runs that were cancelled, each for a while, at most `limit` of them."""

    def __init__(self, limit: int) -> None:
        self._limit: Final = limit
        self._ends: OrderedDict[bytes, float] = OrderedDict()

    def add(self, key: bytes, ends: float) -> None:
        """Remember a cancel until `ends`; a repeated one counts from anew.

        Raises:
            RoutesFullError: `limit` is reached; nothing is remembered. To evict another cancel instead would
                break a promise that was given.
        """
        if key not in self._ends and len(self._ends) >= self._limit:
            raise RoutesFullError(
                f"{len(self._ends)} cancels of unknown runs are remembered, the limit is {self._limit}; run "
                f"{key.hex()[:8]} is unknown here: repeat its cancel"
            )
        self._ends[key] = ends
        self._ends.move_to_end(key)

    def take(self, key: bytes) -> bool:
        """Whether a cancel of that run was remembered; it no longer is."""
        return self._ends.pop(key, None) is not None

    def forget(self, now: float) -> None:
        """Drop what has ended."""
        while self._ends and next(iter(self._ends.values())) <= now:
            self._ends.popitem(last=False)
