"""What remains of runs that are over: an id and an outcome, for a while."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from env_worker.domain.ledger import CancelOutcome


class Tombstones:
    """request_id (16 raw bytes) -> outcome, each for `seconds`.

    Under 200 bytes a run, hence two plain queues beside the dict: tuples or an OrderedDict would take more.
    The owner bounds the number; adding an id that is there already is its error.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds: Final = seconds
        self._outcomes: dict[bytes, CancelOutcome] = {}
        self._keys: deque[bytes] = deque()
        self._ends: deque[float] = deque()

    def __len__(self) -> int:
        return len(self._outcomes)

    @property
    def last_end(self) -> float | None:
        """Monotonic seconds at which `forget` drops the last of them; None while there are none."""
        return self._ends[-1] if self._ends else None

    def add(self, key: bytes, outcome: CancelOutcome, now: float) -> None:
        """Remember `outcome` until `now + seconds`. `now` must not run backwards."""
        self._outcomes[key] = outcome
        self._keys.append(key)
        self._ends.append(now + self._seconds)

    def get(self, key: bytes) -> CancelOutcome | None:
        """The outcome of that run, or None where none is remembered."""
        return self._outcomes.get(key)

    def forget(self, now: float) -> None:
        """Drop what has been here for `seconds`."""
        while self._ends and self._ends[0] <= now:
            self._ends.popleft()
            del self._outcomes[self._keys.popleft()]
            if not self._outcomes:
                self._outcomes.clear()  # an empty dict still has the room of its busiest time
