"""The words of routing: a run's way, and what the broker does about a Cancel of it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Final

_REQUEST_ID: Final = re.compile(r"[0-9a-f]{32}")


class RouteError(RuntimeError):
    """A step that cannot happen to that route: a bug of the caller. Nothing was changed."""


class InvalidRequestIdError(ValueError):
    """A request_id that is not 32 lower-case hexadecimal digits."""


class DuplicateRouteError(ValueError):
    """A request_id that the broker knows. That run is untouched."""

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"request_id {request_id[:8]}... is known; that run is untouched: do not cancel it, send the new "
            "run under a new request_id"
        )


class RoutesFullError(RuntimeError):
    """A bounded table has no room. Nothing was changed."""


class CancelOutcome(Enum):
    """What a Cancel is answered, as in env_service.proto."""

    ABORTED = auto()
    DISCARDED = auto()
    TOO_LATE = auto()
    REMEMBERED = auto()


class ConfirmOutcome(Enum):
    """What a confirmation is answered, as in env_service.proto."""

    CONFIRMED = auto()
    DISCARDED = auto()
    WORKER_LOST = auto()
    UNKNOWN = auto()


class RouteState(Enum):
    """Where a run is."""

    QUEUED = auto()
    """It waits in the broker."""
    PLACED = auto()
    """A worker has it, or will in a moment."""
    REPLIED = auto()
    """Its worker's reply passed with status OK."""


class Action(Enum):
    """What the broker does about a Cancel."""

    REMOVE_FROM_QUEUE = auto()
    """The run waited here and is out of the table: wake it, answer `outcome`."""
    FORWARD = auto()
    """Send the Cancel to `worker`, report its answer to `answered`, and pass it on."""
    REMEMBER = auto()
    """Unknown, and remembered: answer `outcome`."""
    ANSWER = auto()
    """Decided before: answer `outcome`, with reason WORKER_LOST where `worker_lost`."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about one Cancel. `outcome` is None for FORWARD only, `worker` is set for FORWARD only."""

    action: Action
    outcome: CancelOutcome | None = None
    worker: str | None = None
    worker_lost: bool = False


@dataclass(slots=True)
class Route:
    """One run's way. Read it, and change it through the table only."""

    request_id: str
    session_id: str
    state: RouteState = RouteState.QUEUED
    worker: str | None = None
    until: float = math.inf
    """Its stream is over, and it is retained until then; infinite while the stream is open."""
    cancelled: bool = False
    """A cancel was or is to be forwarded, or its session was lost: the run must not be placed elsewhere, and
    a worker that has not answered about it hears of it when it registers again."""
    worker_lost: bool = False
    """Its worker is lost, after the reply passed."""
    answer: Decision | None = None
    """What every further cancel is answered."""

    @property
    def open(self) -> bool:
        """Whether the run's stream is open, or has yet to be opened."""
        return self.until == math.inf

    def expect(self, state: RouteState, step: str) -> None:
        """Raise RouteError unless the route is open and in `state`."""
        if self.state is not state or not self.open:
            raise RouteError(
                f"run {self.request_id[:8]}: {step} is impossible for a route that is {self.state.name}"
                f"{'' if self.open else ', its stream over'}; it needs an open {state.name} one; nothing was "
                "changed, mend the code that sent it"
            )


@cache
def answer(outcome: CancelOutcome, *, worker_lost: bool = False) -> Decision:
    """The ANSWER with that outcome; one object for all runs, since tombstones hold it."""
    return Decision(Action.ANSWER, outcome, worker_lost=worker_lost)


def confirm_outcome(decision: Decision) -> ConfirmOutcome:
    """What a confirmation of a run is answered whose cancels are answered so."""
    if decision.outcome in (CancelOutcome.ABORTED, CancelOutcome.DISCARDED):
        return ConfirmOutcome.DISCARDED
    if decision.outcome is CancelOutcome.REMEMBERED and not decision.worker_lost:
        return ConfirmOutcome.UNKNOWN
    return ConfirmOutcome.WORKER_LOST if decision.worker_lost else ConfirmOutcome.CONFIRMED


def key(request_id: str) -> bytes:
    """The id as 16 raw bytes, for tables. Raises InvalidRequestIdError."""
    if _REQUEST_ID.fullmatch(request_id) is None:
        raise InvalidRequestIdError(
            f"request_id starts with {request_id[:8]!r} and has {len(request_id)} characters; it must be 32 "
            "lower-case hexadecimal digits: use a random 128-bit id, such as uuid.uuid4().hex"
        )
    return bytes.fromhex(request_id)
