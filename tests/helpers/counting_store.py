"""An array store that holds nothing, has room for so many runs, and counts what is reserved."""

from __future__ import annotations

from env_worker.arrays.errors import ArrayBudgetError
from env_worker.arrays.limits import ArrayLimits
from env_worker.arrays.reservation import Reservation
from env_worker.arrays.stats import ArrayStats
from env_worker.arrays.store import ArrayStore


class CountingReservation(Reservation):
    """Counts how often it was closed."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class CountingStore(ArrayStore):
    """Room for `room` runs; None: for all."""

    def __init__(self, room: int | None = None) -> None:
        super().__init__(ArrayLimits(memory_bytes=0))
        self.room = room
        self.reservations: list[CountingReservation] = []

    @property
    def open_reservations(self) -> int:
        """Those that were not closed."""
        return sum(not reservation.closed for reservation in self.reservations)

    def reserve(self) -> Reservation:
        if self.room is not None and self.open_reservations >= self.room:
            raise ArrayBudgetError(
                f"{self.open_reservations} runs are reserved, all that fit; release arrays",
                value=self.open_reservations + 1,
                limit=self.room,
            )
        self.reservations.append(CountingReservation())
        return self.reservations[-1]

    def stats(self) -> ArrayStats:
        return ArrayStats(reserved_bytes=self.open_reservations)

    def check(self, *, open_reservations: int = 0) -> None:
        """So many are open, and every other one was closed exactly once."""
        closed = [reservation.closed for reservation in self.reservations]
        assert max(closed, default=0) <= 1, f"broke ReservedOnce: reservations were closed {closed} times"
        assert self.open_reservations == open_reservations, "broke ReservedOnce: room is still reserved"
