"""The worker's runs by request_id: admission, cancels, windows and what is remembered of them.

Synchronous and without a clock: every call that depends on time takes `now` in monotonic seconds, which must
not run backwards. Belongs to one event loop.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from enum import Enum, auto
from typing import Final

from env_worker.domain.ledger import LATE_CANCEL_SECONDS, CancelOutcome, Entry, Event
from env_worker.domain.tombstones import Tombstones

__all__ = [
    "CancelOutcome",
    "ConfirmOutcome",
    "DuplicateRequestError",
    "InvalidRequestIdError",
    "RunTable",
    "TableFullError",
]

_REQUEST_ID: Final = re.compile(r"[0-9a-f]{32}")


class InvalidRequestIdError(ValueError):
    """A request_id that is not 32 lower-case hexadecimal digits."""


class DuplicateRequestError(ValueError):
    """A request_id that a run of this worker has, or had within two windows. That run is untouched."""


class TableFullError(RuntimeError):
    """A bounded table has no room. Nothing was changed."""


class ConfirmOutcome(Enum):
    """What a confirmation is answered."""

    CONFIRMED = auto()
    """Delivered for good, by this confirmation, an earlier one, or the end of the window."""
    DISCARDED = auto()
    """It had been taken back, or was never delivered."""
    UNKNOWN = auto()
    """No such run here, or it has not replied yet."""


class RunTable:
    """request_id -> `Entry`, and tombstones of those that are over.

    Args:
        limit: most runs at once, keeps and discards that have not returned included.
        window_limit: most open windows at once: with that many, no run is admitted. Those that were admitted
            before still get theirs.
        known_limit: most ids at once, tombstones included. An admitted run has the room of its tombstone.
        remembered_limit: most cancels of unknown runs that are remembered at once.
        late_cancel_seconds: the window after a reply; also how long a cancel of an unknown run is
            remembered. Tombstones stay for two of them.
    """

    def __init__(
        self,
        *,
        limit: int = 16_384,
        window_limit: int = 131_072,
        known_limit: int = 262_144,
        remembered_limit: int = 16_384,
        late_cancel_seconds: float = LATE_CANCEL_SECONDS,
    ) -> None:
        self.late_cancel_seconds: Final = late_cancel_seconds
        self._limit: Final = limit
        self._window_limit: Final = window_limit
        self._known_limit: Final = known_limit
        self._remembered_limit: Final = remembered_limit
        self._entries: dict[bytes, Entry] = {}
        # In the order of their ends, since the window is constant. Ordered and not a deque, so that a
        # confirmed run leaves at once instead of weighing until its window is over.
        self._windows: OrderedDict[bytes, Entry] = OrderedDict()
        self._tombstones = Tombstones(2 * late_cancel_seconds)
        self._remembered: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def open_windows(self) -> int:
        """How many replies can still be taken back."""
        return len(self._windows)

    @property
    def next_expiry(self) -> float | None:
        """Monotonic seconds at which `expire` has a window to close; None while none is open."""
        for entry in self._windows.values():
            return entry.window_ends
        return None

    @property
    def last_expiry(self) -> float | None:
        """Monotonic seconds at which the last open window is over; None while none is open."""
        return next((entry.window_ends for entry in reversed(self._windows.values())), None)

    @property
    def last_forgetting(self) -> float | None:
        """Monotonic seconds at which `expire` forgets the last run that is over; None while there is none."""
        return self._tombstones.last_end

    def entries(self) -> tuple[Entry, ...]:
        """All entries that are not closed, oldest first."""
        return tuple(self._entries.values())

    def get(self, request_id: str) -> Entry | None:
        """The entry of that run; None where it is unknown or closed.

        Raises:
            InvalidRequestIdError: not 32 lower-case hexadecimal digits.
        """
        return self._entries.get(_key(request_id))

    def admit(self, request_id: str, session_id: str, now: float) -> Entry:
        """Enter a new run. Where a cancel of it is remembered, the entry returned is ABORTED already.

        Raises:
            InvalidRequestIdError: not 32 lower-case hexadecimal digits.
            DuplicateRequestError: the id is known. The first run must not be cancelled for this.
            TableFullError: `limit`, `window_limit` or `known_limit` is reached.
        """
        key = _key(request_id)
        self._forget(now)
        if key in self._entries or self._tombstones.get(key) is not None:
            raise DuplicateRequestError(
                f"request_id {request_id[:8]}... was seen within {2 * self.late_cancel_seconds:g} s; that "
                "run is untouched: do not cancel it, send the new run under a new request_id"
            )
        if (live := len(self._entries) - len(self._windows)) >= self._limit:
            raise TableFullError(
                f"the worker holds {live} runs, its limit is {self._limit}; send the run again later"
            )
        if len(self._windows) >= self._window_limit:
            raise TableFullError(
                f"{len(self._windows)} replies can still be taken back, the worker's limit is "
                f"{self._window_limit}; send the run again later; confirm episodes (a session does), or use "
                f"a shorter --late-cancel-seconds than {self.late_cancel_seconds:g}"
            )
        if (known := len(self._entries) + len(self._tombstones)) >= self._known_limit:
            raise TableFullError(
                f"the worker remembers {known} request_ids, its limit is {self._known_limit}; send the run "
                f"again later: each is forgotten {2 * self.late_cancel_seconds:g} s after its run"
            )
        entry = self._entries[key] = Entry(request_id, session_id)
        entry.key = key
        if self._remembered.pop(key, None) is not None:
            self.settle(entry, Event.CANCEL, now)
        return entry

    def settle(self, entry: Entry, event: Event, now: float) -> bool:
        """`entry.settle(event)`; REPLIED opens the window, and a closed entry becomes a tombstone.

        Raises:
            LedgerError: `event` is impossible in the entry's state. Nothing was changed.
        """
        if not entry.settle(event):
            return False
        key = entry.key
        if event is Event.REPLIED:
            entry.window_ends = now + self.late_cancel_seconds
            self._windows[key] = entry
        elif entry.outcome is not None:
            self._windows.pop(key, None)
            if entry.closed:
                del self._entries[key]
                self._tombstones.add(key, entry.outcome, now)
        return True

    def settle_all(self, event: Event, now: float, *, session_id: str | None = None) -> list[Entry]:
        """Settle `event` (STOP, SESSION_LOST) for all runs, or those of a session; the ones that it moved."""
        return [
            entry
            for entry in self.entries()
            if session_id in (None, entry.session_id) and self.settle(entry, event, now)
        ]

    def cancel(self, request_id: str, now: float) -> CancelOutcome:
        """Take a run back if that is still possible. A repeated cancel gets the first one's outcome.

        The caller then wakes the run's task, and begins the discard where `get(request_id).discard_due`.

        Raises:
            InvalidRequestIdError: not 32 lower-case hexadecimal digits.
            TableFullError: the run is unknown and `remembered_limit` is reached; nothing is remembered.
        """
        key = _key(request_id)
        self._forget(now)
        if (entry := self._entries.get(key)) is not None:
            self.settle(entry, Event.CANCEL, now)
            assert entry.outcome is not None, "a cancel settles every entry that is open"
            return entry.outcome
        if (outcome := self._tombstones.get(key)) is not None:
            return outcome
        if key not in self._remembered and len(self._remembered) >= self._remembered_limit:
            raise TableFullError(
                f"{len(self._remembered)} cancels of unknown runs are remembered, the limit is "
                f"{self._remembered_limit}; run {request_id[:8]} is unknown here: repeat its cancel"
            )
        self._remembered[key] = now + self.late_cancel_seconds
        self._remembered.move_to_end(key)
        return CancelOutcome.REMEMBERED

    def confirm(self, request_id: str, now: float) -> ConfirmOutcome:
        """Make a delivery final. Idempotent.

        Raises:
            InvalidRequestIdError: not 32 lower-case hexadecimal digits.
        """
        key = _key(request_id)
        self._forget(now)
        if (entry := self._entries.get(key)) is not None:
            self.settle(entry, Event.CONFIRM, now)
            outcome = entry.outcome
        else:
            outcome = self._tombstones.get(key)
        if outcome is None:
            return ConfirmOutcome.UNKNOWN
        return ConfirmOutcome.CONFIRMED if outcome is CancelOutcome.TOO_LATE else ConfirmOutcome.DISCARDED

    def expire(self, now: float) -> list[Entry]:
        """Close the windows that are over and forget what is old; the entries whose window closed.

        Only this closes a window: a cancel that comes between the window's end and this call still takes its
        reply back. So what may hold a window open longer (a broker that has not heard of the run's end) has
        its place in the loop's condition.
        """
        closed: list[Entry] = []
        while (ends := self.next_expiry) is not None and ends <= now:
            entry = next(iter(self._windows.values()))
            self.settle(entry, Event.EXPIRE, now)
            closed.append(entry)
        self._forget(now)
        for idle in (self._entries, self._windows, self._remembered):
            if not idle:
                idle.clear()  # an empty dict still has the room of its busiest time
        return closed

    def _forget(self, now: float) -> None:
        self._tombstones.forget(now)
        while self._remembered and next(iter(self._remembered.values())) <= now:
            self._remembered.popitem(last=False)


def _key(request_id: str) -> bytes:
    if _REQUEST_ID.fullmatch(request_id) is None:
        raise InvalidRequestIdError(
            f"request_id starts with {request_id[:8]!r} and has {len(request_id)} characters; it must be 32 "
            "lower-case hexadecimal digits: use a random 128-bit id, such as uuid.uuid4().hex"
        )
    return bytes.fromhex(request_id)
