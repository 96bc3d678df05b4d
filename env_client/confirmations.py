"""Which confirmations wait, are on their way, or have had their time. No I/O, no clock, no threads."""

from __future__ import annotations

import enum
import heapq
import itertools
from dataclasses import dataclass
from typing import Final

MAX_BATCH: Final = 1_024
"""Most request_ids in one Confirm frame."""

_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0


class Verdict(enum.Enum):
    """What became of an episode's delivery."""

    CONFIRMED = "CONFIRMED"
    """It is delivered for good."""
    DISCARDED = "DISCARDED"
    """It had been taken back: it must not be used."""
    WORKER_LOST = "WORKER_LOST"
    """Its worker is lost, and with it the knowledge."""
    UNANSWERED = "UNANSWERED"
    """Nobody said so within the window, or before the client was closed."""
    NOT_OFFERED = "NOT_OFFERED"
    """The server has no sessions: the late-cancel window alone decides."""


def pause_seconds(attempts: int) -> float:
    """How long to wait after so many attempts in a row that led nowhere: 50 ms, doubled up to 1 s."""
    return min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(attempts - 1, 10))


@dataclass(slots=True, eq=False)
class _Entry:
    request_id: str
    asked_at: float
    has_left: bool = False
    unknowns: int = 0


class Confirmations:
    """The confirmations of one session that have no final answer yet.

    Each is *ready* to be sent, *in flight* on the session's present stream, or *resting* until it is asked
    again; it leaves by its answer, by being withdrawn, or at its window's end. All times are of one monotonic
    clock, in seconds.

    Attributes:
        window_seconds: how long after it was added a confirmation is worth repeating. Applies to all at once.
    """

    def __init__(self, window_seconds: float) -> None:
        self.window_seconds = window_seconds
        # In the order in which they were added, and so in the order in which they expire.
        self._entries: dict[str, _Entry] = {}
        self._ready: dict[str, _Entry] = {}
        self._in_flight: dict[str, _Entry] = {}
        self._resting: list[tuple[float, int, _Entry]] = []
        self._rests = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def in_flight(self) -> int:
        """How many were sent on the present stream and are not answered."""
        return len(self._in_flight)

    def add(self, request_id: str, now: float) -> bool:
        """Make it ready. False, and nothing happens, if that run's confirmation waits already."""
        if request_id in self._entries:
            return False
        entry = _Entry(request_id, asked_at=now)
        self._entries[request_id] = self._ready[request_id] = entry
        return True

    def has_ready(self, now: float) -> bool:
        """Whether `take_batch` would take any."""
        self._rouse(now)
        return bool(self._ready)

    def take_batch(self, now: float) -> list[str]:
        """What the next frame confirms: the oldest that are ready, `MAX_BATCH` at most. Now in flight."""
        self._rouse(now)
        batch = list(itertools.islice(self._ready, MAX_BATCH))
        for request_id in batch:
            entry = self._ready.pop(request_id)
            entry.has_left = True
            self._in_flight[request_id] = entry
        return batch

    def answer(self, request_id: str, verdict: Verdict | None, now: float) -> bool:
        """An answer came. None: the server does not know (yet), so it is to be asked again after a pause.

        True if that settles a confirmation that waited. An answer to none that waits is passed over.
        """
        entry = self._entries.get(request_id)
        if entry is None:
            return False
        if verdict is not None:
            self._drop(entry)
            return True
        if self._in_flight.pop(request_id, None) is not None:
            entry.unknowns += 1
            self._rests += 1
            heapq.heappush(self._resting, (now + pause_seconds(entry.unknowns), self._rests, entry))
        return False

    def disconnected(self) -> None:
        """The stream is over: what was in flight on it is ready again, ahead of what is newer."""
        self._ready = {**self._in_flight, **self._ready}
        self._in_flight = {}

    def withdraw(self, request_id: str) -> bool:
        """Nobody waits for it any more. True if it had never left."""
        entry = self._entries.get(request_id)
        if entry is None:
            return False
        self._drop(entry)
        return not entry.has_left

    def expire(self, now: float) -> list[str]:
        """Let go of those whose window is over, and name them. Afterwards `wake_at` lies ahead of `now`."""
        self._rouse(now)  # Also while nothing can be sent, or whoever sleeps until `wake_at` would not sleep.
        over: list[str] = []
        for entry in self._entries.values():
            if now < entry.asked_at + self.window_seconds:  # the very sum of `wake_at`: floats are rounded
                break
            over.append(entry.request_id)
        for request_id in over:
            self._drop(self._entries[request_id])
        return over

    def clear(self) -> list[str]:
        """Let go of all, and name them."""
        every = list(self._entries)
        for request_id in every:
            self._drop(self._entries[request_id])
        return every

    def wake_at(self) -> float | None:
        """When something may happen without an event: an expiry or a repetition. None: never."""
        times = [
            entry.asked_at + self.window_seconds for entry in itertools.islice(self._entries.values(), 1)
        ]
        if self._resting:
            times.append(self._resting[0][0])
        return min(times, default=None)

    def _rouse(self, now: float) -> None:
        while self._resting and self._resting[0][0] <= now:
            entry = heapq.heappop(self._resting)[2]
            if self._entries.get(entry.request_id) is entry:
                self._ready[entry.request_id] = entry

    def _drop(self, entry: _Entry) -> None:
        del self._entries[entry.request_id]
        self._ready.pop(entry.request_id, None)
        self._in_flight.pop(entry.request_id, None)
