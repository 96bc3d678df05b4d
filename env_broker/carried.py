"""A run that the broker carries, and the last thing that happened to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from env_broker.clock import Clock
    from env_broker.relay import ClientHop

QUEUED: Final = "queued"
PLACED: Final = "placed"
ADMITTED: Final = "admitted"
RECEIVED: Final = "received"
PASSED: Final = "passed"
REPLIED: Final = "replied"
CANCEL_SENT: Final = "cancel sent"


@dataclass(slots=True, eq=False)
class Carried:
    """One run. Noting it here is all that a message costs; times are monotonic seconds."""

    request_id: str
    at: float
    """When its last event was; of a run that waits, when it came."""
    event: str = QUEUED
    messages: int = 0
    """Messages that its worker has sent."""
    worker: str = ""
    """Where it is, as logs name it; empty while it waits."""
    went_on: float = -math.inf
    """When it went on last; see `happened`."""
    told: bool = False
    """Whether the log has named it as one that stays behind."""

    def happened(self, event: str, now: float) -> None:
        """Note its last event. A reply, and messages after the first, are progress: on workers that all hang
        runs are placed too, and come as far as their prompt."""
        self.event, self.at = event, now
        if event is REPLIED or (self.messages > 1 and (event is RECEIVED or event is PASSED)):
            self.went_on = now

    @property
    def last_event(self) -> str:
        """The last event, for people."""
        if self.event is RECEIVED:
            return f"message {self.messages} came, and its client has yet to read it"
        if self.event is PASSED:
            return f"message {self.messages} passed"
        return self.event

    def line(self, now: float) -> str:
        """Run, worker, last event and its age, for the log."""
        return (
            f"run={self.request_id[:8]} worker={self.worker or 'none'} last event={self.last_event!r} "
            f"age={now - self.at:.1f} s"
        )


class CarriedHop:
    """A run's way to its client, which notes what passes.

    Args:
        hop: the way itself.
        carried: where to note it.
    """

    def __init__(self, hop: ClientHop, carried: Carried, clock: Clock) -> None:
        self._hop: Final = hop
        self._carried: Final = carried
        self._clock: Final = clock

    def placed(self, worker: str) -> None:
        """The run goes to that worker."""
        carried = self._carried
        carried.worker = worker
        carried.happened(PLACED, self._clock.now())

    def declined(self) -> None:
        """That worker did not admit it: it waits again."""
        self._carried.event, self._carried.worker = QUEUED, ""

    async def admitted(self) -> None:
        """As in ClientHop."""
        self._carried.happened(ADMITTED, self._clock.now())
        await self._hop.admitted()

    async def send(self, message: bytes) -> None:
        """As in ClientHop."""
        carried = self._carried
        carried.messages += 1
        carried.happened(RECEIVED, self._clock.now())
        await self._hop.send(message)
        carried.happened(PASSED, self._clock.now())

    def give_up(self, *, quietly: bool) -> None:
        """As in ClientHop."""
        self._hop.give_up(quietly=quietly)

    def time_remaining(self) -> float | None:
        """As in ClientHop."""
        return self._hop.time_remaining()
