"""Clients' sessions by id: which are open, and which have been away for too long.

Synchronous and without a clock: every call that depends on time takes `now` in monotonic seconds, which must
not run backwards. Belongs to one event loop. It knows no runs: whoever hears here that a session is lost
settles SESSION_LOST for those that name it.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Final, NamedTuple

from env_worker.domain.runs import TableFullError

SESSION_GRACE_SECONDS: Final = 3.0
"""How long a session may be without a stream, where a worker sets no other grace."""

_SESSION_ID: Final = re.compile(r"[0-9a-f]{32}")


class InvalidSessionError(ValueError):
    """A session_id that is not 32 lower-case hexadecimal digits, or an epoch below 1."""


class SessionSupersededError(RuntimeError):
    """An epoch that is not above the one that owns the session. Nothing was changed."""


class _Over(NamedTuple):
    """What is remembered of a session that is over."""

    epoch: int
    until: float
    lost: bool
    """It did not come back; otherwise it said goodbye."""


class SessionTable:
    """session_id -> the epoch that owns it.

    A session is open while the stream of that epoch is, then waits for the next epoch until its grace is
    over, and then is lost. The end of an older epoch's stream means nothing, and after a goodbye the session
    is over without being lost. What is over leaves its epoch for a while, so that an `open` that was long
    under way does not take the session up again. A lost one that a run names waits for the next epoch again,
    so that the run is lost with it if that does not come.

    Args:
        grace_seconds: how long a session may be without a stream.
        limit: most sessions at once, open or within their grace; also most that are over and remembered, of
            which the oldest make room. Lost ones that runs name take their room along: no more than twice
            `limit` are known in all.
        remember_seconds: how long the epoch of a session that is over is remembered.
    """

    def __init__(
        self,
        *,
        grace_seconds: float = SESSION_GRACE_SECONDS,
        limit: int = 16_384,
        remember_seconds: float = 120.0,
    ) -> None:
        self.grace_seconds: Final = grace_seconds
        self._limit: Final = limit
        self._remember_seconds: Final = remember_seconds
        self._epochs: dict[str, int] = {}
        # In the order of their ends, since grace and memory are constant.
        self._away: OrderedDict[str, float] = OrderedDict()
        self._over: OrderedDict[str, _Over] = OrderedDict()

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def next_expiry(self) -> float | None:
        """Monotonic seconds at which `expire` has a session to lose; None while all have their streams."""
        return next(iter(self._away.values()), None)

    def owner(self, session_id: str) -> int | None:
        """The epoch that owns the session; None where it is neither open nor within its grace."""
        return self._epochs.get(session_id)

    def open(self, session_id: str, epoch: int, now: float) -> None:
        """A stream of this epoch takes the session up; it owns it from now on, and a grace ends.

        Raises:
            InvalidSessionError: the id is not 32 lower-case hexadecimal digits, or the epoch is 0.
            SessionSupersededError: the session has, or had, that epoch or a higher one.
            TableFullError: the session is new and `limit` is reached.
        """
        _check(session_id, epoch)
        self._forget(now)
        known = over.epoch if (over := self._over.get(session_id)) else 0
        if (latest := self._epochs.get(session_id, known)) >= epoch:
            raise SessionSupersededError(
                f"session {session_id[:8]} was opened with epoch {epoch}, and epoch {latest} owns it; two "
                "clients must not share a session_id, and a client reconnects with the next epoch"
            )
        if session_id not in self._epochs and len(self._epochs) >= self._limit:
            raise TableFullError(
                f"{len(self._epochs)} sessions are open, the limit is {self._limit}; open session "
                f"{session_id[:8]} again later, or use one client for more runs"
            )
        self._over.pop(session_id, None)
        self._away.pop(session_id, None)
        self._epochs[session_id] = epoch

    def stream_ended(self, session_id: str, epoch: int, now: float) -> bool:
        """That epoch's stream ended without a goodbye. True if it owns the session, whose grace begins."""
        if self._epochs.get(session_id) != epoch or session_id in self._away:
            return False
        self._away[session_id] = now + self.grace_seconds
        return True

    def goodbye(self, session_id: str, epoch: int, now: float) -> bool:
        """That epoch's stream said goodbye. True if it owned the session, which is over."""
        if self._epochs.get(session_id) != epoch:
            return False
        self._close(session_id, now, lost=False)
        return True

    def named(self, session_id: str, now: float) -> bool:
        """A run was admitted that names the session. True if that was lost: a grace begins again."""
        self._forget(now)
        if (over := self._over.get(session_id)) is None or not over.lost:
            return False
        del self._over[session_id]
        self._epochs[session_id] = over.epoch
        self._away[session_id] = now + self.grace_seconds
        return True

    def expire(self, now: float) -> list[str]:
        """The sessions whose grace is over: lost. Each is told once.

        Only this loses a session: one that comes back between its grace's end and this call goes on.
        """
        lost: list[str] = []
        while (ends := self.next_expiry) is not None and ends <= now:
            session_id = next(iter(self._away))
            self._close(session_id, now, lost=True)
            lost.append(session_id)
        self._forget(now)
        return lost

    def _close(self, session_id: str, now: float, *, lost: bool) -> None:
        self._away.pop(session_id, None)
        self._over[session_id] = _Over(self._epochs.pop(session_id), now + self._remember_seconds, lost)
        if len(self._over) > self._limit:
            self._over.popitem(last=False)

    def _forget(self, now: float) -> None:
        while self._over and next(iter(self._over.values())).until <= now:
            self._over.popitem(last=False)


def _check(session_id: str, epoch: int) -> None:
    if _SESSION_ID.fullmatch(session_id) is None:
        raise InvalidSessionError(
            f"session_id starts with {session_id[:8]!r} and has {len(session_id)} characters; it must be 32 "
            "lower-case hexadecimal digits: use a random 128-bit id, such as uuid.uuid4().hex"
        )
    if epoch < 1:
        raise InvalidSessionError(
            f"session {session_id[:8]} has epoch {epoch}; the first is 1, each reconnection adds one"
        )
