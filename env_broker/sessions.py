"""Which sessions there are, which stream owns each, and which were lost.

Synchronous and without a clock: `now` is monotonic seconds and must not run backwards. Losing a race is
normal and returns False. A session that was never opened here is never lost here.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Final, NamedTuple

MEMORY_SECONDS: Final = 120.0
"""How long the epoch of a session that is over is remembered, so that no older stream brings it back."""

_SESSION_ID: Final = re.compile(r"[0-9a-f]{32}")


class InvalidSessionError(ValueError):
    """A session_id that is not 32 lower-case hexadecimal digits, or an epoch of 0."""


class SupersededError(ValueError):
    """A stream with a higher epoch, or with the same, has opened the session. Nothing was changed."""


class SessionsFullError(RuntimeError):
    """There are as many sessions as there may be. Nothing was changed."""


class _Away(NamedTuple):
    """A session without a stream: the epoch of its last one, when this entry ends, whether it was lost."""

    epoch: int
    ends: float
    lost: bool = False


class SessionTable:
    """session_id -> the epoch of the stream that owns it.

    Args:
        grace: seconds that a session may take to come back after its stream ended without a goodbye.
        limit: most sessions, those in their grace included; and most that are remembered when they are over.
            Beyond it come only those of which runs came after they were lost, from what was remembered.
    """

    def __init__(self, *, grace: float, limit: int = 16_384) -> None:
        self.grace: Final = grace
        self._limit: Final = limit
        self._open: dict[str, int] = {}
        # Both in the order of their ends.
        self._away: OrderedDict[str, _Away] = OrderedDict()
        self._over: OrderedDict[str, _Away] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open) + len(self._away)

    @property
    def open_sessions(self) -> frozenset[str]:
        """The sessions that have a stream now."""
        return frozenset(self._open)

    @property
    def next_loss(self) -> float | None:
        """When the next session will be lost, unless it comes back; None where none is in its grace."""
        return next(iter(self._away.values())).ends if self._away else None

    def open(self, session_id: str, epoch: int, now: float) -> None:
        """The stream with this epoch owns the session from now on; an older one's end means nothing any more.

        A session whose grace is over, but which was not yet told by `lost`, is back in time.

        Raises:
            InvalidSessionError: see there.
            SupersededError: a stream with this epoch or a higher one has opened it.
            SessionsFullError: it is new here, and `limit` is reached.
        """
        if _SESSION_ID.fullmatch(session_id) is None:
            raise InvalidSessionError(
                f"session_id starts with {session_id[:8]!r} and has {len(session_id)} characters; it must be "
                "32 lower-case hexadecimal digits: use a random 128-bit id, such as uuid.uuid4().hex"
            )
        if epoch < 1:
            raise InvalidSessionError(
                f"session {session_id[:8]}: epoch is {epoch}; count its streams from 1, and each one higher"
            )
        self._forget(now)
        if (highest := self._highest(session_id)) >= epoch:
            raise SupersededError(
                f"session {session_id[:8]} was opened with epoch {highest}, this stream has {epoch}; leave "
                "the session to that one"
            )
        if session_id not in self._open and session_id not in self._away and len(self) >= self._limit:
            raise SessionsFullError(
                f"there are {len(self)} sessions, the limit is {self._limit}; open the session again later"
            )
        self._away.pop(session_id, None)
        self._over.pop(session_id, None)
        self._open[session_id] = epoch

    def end(self, session_id: str, epoch: int, now: float) -> bool:
        """The stream ended without a goodbye: the grace begins. False: it did not own the session."""
        if self._open.get(session_id) != epoch:
            return False
        del self._open[session_id]
        self._away[session_id] = _Away(epoch, now + self.grace)
        return True

    def goodbye(self, session_id: str, epoch: int, now: float) -> bool:
        """The client is done: its session is over, its runs are left to themselves. False: as in `end`."""
        if self._open.get(session_id) != epoch:
            return False
        del self._open[session_id]
        self._remember(session_id, epoch, now)
        return True

    def lost(self, now: float) -> list[str]:
        """The sessions that did not come back in their grace, each once. Cancel their runs."""
        lost: list[str] = []
        while (ends := self.next_loss) is not None and ends <= now:
            session_id, away = self._away.popitem(last=False)
            self._remember(session_id, away.epoch, now, lost=True)
            lost.append(session_id)
        return lost

    def expect(self, session_id: str, now: float) -> bool:
        """A run names the session. True: it was lost, so it has a grace from now, and is lost again after it.

        Its client may be about to open it again; if it is not, nothing else would end that run.
        """
        self._forget(now)
        over = self._over.get(session_id)
        if over is None or not over.lost:
            return False
        del self._over[session_id]
        self._away[session_id] = _Away(over.epoch, now + self.grace)
        return True

    def _highest(self, session_id: str) -> int:
        gone = self._away.get(session_id) or self._over.get(session_id)
        return self._open.get(session_id) or (gone.epoch if gone else 0)

    def _remember(self, session_id: str, epoch: int, now: float, *, lost: bool = False) -> None:
        self._over[session_id] = _Away(epoch, now + MEMORY_SECONDS, lost)
        if len(self._over) > self._limit:
            self._over.popitem(last=False)

    def _forget(self, now: float) -> None:
        while self._over and next(iter(self._over.values())).ends <= now:
            self._over.popitem(last=False)
