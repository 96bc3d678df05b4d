"""One view of the pool for all who watch it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from envtrio.v1.pool_service_pb2 import WatchPoolResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_broker.clock import Clock

SHARED_SECONDS: Final = 0.05
"""How old a view may be that a watcher is shown."""


class Taken(NamedTuple):
    """A view as it is sent."""

    version: int
    """The same as long as the pool is, but for the time."""
    data: bytes
    """A WatchPoolResponse."""


class SharedView:
    """Takes and encodes a view once for all watchers that want one at about the same time.

    Args:
        view: the pool as it is now, without a time.
    """

    def __init__(self, view: Callable[[], WatchPoolResponse], clock: Clock) -> None:
        self._view: Final = view
        self._clock: Final = clock
        self._looked = 0.0
        self._last: WatchPoolResponse | None = None
        self._taken: Taken = Taken(0, b"")

    def newest(self, *, fresh: bool) -> Taken:
        """The pool as it is now, or where it needs not be `fresh`, as it was a moment ago."""
        now = self._clock.now()
        if self._last is not None and not fresh and now - self._looked < SHARED_SECONDS:
            return self._taken
        view, self._looked = self._view(), now
        changed = view != self._last
        if changed or fresh:
            time_taken = WatchPoolResponse()
            time_taken.taken_at.FromNanoseconds(time.time_ns())
            # What is encoded one after another is decoded as one message.
            data = view.SerializeToString() + time_taken.SerializeToString()
            self._last, self._taken = view, Taken(self._taken.version + changed, data)
        return self._taken
