"""Which fetches may stream at once, and which wait until they may."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

RECLAIM_SECONDS: Final = 1.0
"""How often places are looked for that can be taken away, while somebody waits for one."""


class Place:
    """The place of one stream. One that no `Places` has given is never taken away."""

    def __init__(self) -> None:
        self.taken_away: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        """Done when somebody else may have it: the stream is to end."""
        self.stalled_since: float | None = None
        """Since when the caller has taken nothing of a message, in the loop's time; None between messages."""


class Places:
    """So many places, given in the order in which they were asked for. For one event loop.

    Who waits for one costs next to nothing. A stream whose caller takes nothing keeps its place while nobody
    else wants it; then whoever has stalled for the longest, and for `patience_seconds` at least, loses it.

    gRPC keeps what such a caller has not taken until that reads, or hangs up. Therefore there may be only as
    many of them again as there are places: no more lose theirs, and each further one counts as a place.
    """

    def __init__(self, places: int, patience_seconds: float) -> None:
        self._places: Final = places
        self._patience_seconds: Final = patience_seconds
        self._taken: Final[set[Place]] = set()
        self._left_behind = 0
        self._waiting: Final[dict[asyncio.Future[Place], None]] = {}
        """In the order in which they came."""
        self._reclaiming: asyncio.TimerHandle | None = None

    @property
    def taken(self) -> int:
        """Places that somebody has."""
        return len(self._taken)

    @property
    def waiting(self) -> int:
        """Streams that wait for one."""
        return len(self._waiting)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Place]:
        """A place of one's own, once it is one's turn."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = None
        self._give()
        if self._waiting and self._reclaiming is None:
            self._reclaim()
        try:
            place = await turn
        except asyncio.CancelledError:
            self._waiting.pop(turn, None)
            if not turn.cancelled():  # it was given in the same moment
                self._leave(turn.result())
            raise
        try:
            yield place
        finally:
            self._leave(place)

    @contextmanager
    def left_behind(self) -> Iterator[None]:
        """Until a caller that has lost its place, or has stalled for good, hears of it."""
        self._left_behind += 1
        try:
            yield
        finally:
            self._left_behind -= 1
            self._give()

    def _leave(self, place: Place) -> None:
        self._taken.discard(place)  # if somebody else has not got it already
        self._give()

    def _give(self) -> None:
        while self._waiting and len(self._taken) + max(0, -self._may_lose) < self._places:
            turn = next(iter(self._waiting))
            del self._waiting[turn]
            if not turn.done():  # else its caller is gone
                place = Place()
                self._taken.add(place)
                turn.set_result(place)

    @property
    def _may_lose(self) -> int:
        """How many more callers may be left behind; less than 0 if there are more already."""
        return self._places - self._left_behind

    def _reclaim(self) -> None:
        """Take away what has stalled for too long, as far as others wait for it; look again while they do."""
        loop = asyncio.get_running_loop()
        latest = loop.time() - self._patience_seconds
        stalled = sorted(
            ((place.stalled_since, place) for place in self._taken if place.stalled_since is not None),
            key=lambda entry: entry[0],
        )
        for since, place in stalled[: max(0, min(len(self._waiting), self._may_lose))]:
            if since <= latest:
                place.taken_away.set_result(None)
                self._leave(place)
        waited_for = bool(self._waiting)
        self._reclaiming = loop.call_later(RECLAIM_SECONDS, self._reclaim) if waited_for else None
