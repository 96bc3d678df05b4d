"""The contract of keep and discard as one transition table.

Every episode that was passed to `keep` is delivered, or handed to `discard`: exactly once, and never while
`keep` still runs. Whoever settles an entry first decides, and all decisions are rows of `_NEXT`. Nothing
here waits, reads a clock or knows a stream: a run that travels on its own call and one that travels inside
a session settle alike. An entry belongs to one event loop; hook threads report back to it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LATE_CANCEL_SECONDS: Final = 60.0
"""Seconds after its reply in which a run can be taken back, where a worker sets no other window."""


class LedgerError(RuntimeError):
    """An event that cannot happen in the entry's state: a bug of whoever sent it. Nothing was changed."""


class CancelOutcome(Enum):
    """What a Cancel is answered."""

    ABORTED = auto()
    """The run had not replied: it was stopped, or had failed. What was kept is discarded."""
    DISCARDED = auto()
    """The reply had left and was taken back. What was kept is discarded."""
    TOO_LATE = auto()
    """Delivered for good."""
    REMEMBERED = auto()
    """No such run here: the cancel applies if the run comes within the window."""


class State(Enum):
    """Where a run stands."""

    __hash__ = object.__hash__  # each is one object, and a table is looked into several times a run

    QUEUED = auto()
    """Admitted, not started."""
    RUNNING = auto()
    """The environment runs, or the finished episode waits for a hook thread."""
    KEEPING = auto()
    """A hook thread runs `keep`."""
    KEEPING_ABANDONED = auto()
    """The run is settled and its caller answered, but `keep` still runs: discard has to wait."""
    KEPT = auto()
    """`keep` returned; the final flush and the reply are pending."""
    UNKEPT = auto()
    """Finished without a hook; the final flush and the reply are pending."""
    REPLIED = auto()
    """The reply was written; a Cancel can still take it back."""
    REPLIED_UNKEPT = auto()
    """As REPLIED, of a run without a hook."""
    ABORTED = auto()
    """Closed without a reply; `keep` never began."""
    DISCARD_DUE = auto()
    """Settled against delivery; `discard` must be called, and nobody has begun to."""
    DISCARDING = auto()
    """A hook thread runs `discard`, or is about to."""
    DISCARDED = auto()
    """Closed: `discard` returned, or nothing had been kept and the reply was taken back."""
    DISCARD_FAILED = auto()
    """Closed: `discard` raised. It is not tried again."""
    CONFIRMED = auto()
    """Closed: delivered for good by a confirmation."""
    EXPIRED = auto()
    """Closed: delivered for good by the end of the window."""


class Event(Enum):
    """What can happen to a run."""

    __hash__ = object.__hash__  # each is one object, and a table is looked into several times a run

    # From outside, at any moment: losing is normal.
    CANCEL = auto()
    DEADLINE = auto()
    CALLER_LOST = auto()
    SESSION_LOST = auto()
    STOP = auto()  # SIGTERM
    BROKEN = auto()  # the stream ended not OK
    SEND_FAILED = auto()
    ENCODE_FAILED = auto()
    CONFIRM = auto()
    EXPIRE = auto()  # the window closed
    # From the run's own task.
    STARTED = auto()
    REFUSED = auto()  # after admission, before the first trace
    ENVIRONMENT_FAILED = auto()  # before the first trace: there is no episode
    FINISHED = auto()  # there is an episode, a hook thread is free: `keep` begins now
    FINISHED_UNKEPT = auto()  # there is an episode and no hook
    KEEP_RETURNED = auto()
    KEEP_RAISED = auto()
    REPLIED = auto()  # the reply was written, and the very next thing is status OK
    DISCARD_BEGAN = auto()
    DISCARD_RETURNED = auto()
    DISCARD_RAISED = auto()


_ENDINGS: Final = (
    Event.CANCEL,
    Event.DEADLINE,
    Event.CALLER_LOST,
    Event.SESSION_LOST,
    Event.STOP,
    Event.BROKEN,
    Event.SEND_FAILED,
    Event.ENCODE_FAILED,
)
"""What ends a run that has not replied yet."""

_LATE: Final = (*_ENDINGS, Event.CONFIRM, Event.EXPIRE)
"""What may still arrive from outside when all is decided."""

_TAKE_BACK: Final = (Event.CANCEL, Event.SESSION_LOST)
"""What can take a reply back. All other endings lose: nobody can know whether status OK arrived, so a lost
caller proves nothing any more, and SIGTERM leaves the windows open."""


def _to(state: State, events: Iterable[Event]) -> dict[Event, State]:
    return dict.fromkeys(events, state)


def _replied(taken_back: State, itself: State) -> dict[Event, State]:
    return {
        **_to(itself, _ENDINGS),
        **_to(taken_back, _TAKE_BACK),
        Event.CONFIRM: State.CONFIRMED,
        Event.EXPIRE: State.EXPIRED,
    }


# A row that leads to its own state is an event that lost; an event without a row is impossible.
_NEXT: Final[Mapping[State, Mapping[Event, State]]] = {
    State.QUEUED: {
        **_to(State.ABORTED, (*_ENDINGS, Event.REFUSED)),
        Event.CONFIRM: State.QUEUED,  # there is nothing to confirm yet
        Event.STARTED: State.RUNNING,
    },
    State.RUNNING: {
        **_to(State.ABORTED, (*_ENDINGS, Event.REFUSED, Event.ENVIRONMENT_FAILED)),
        Event.CONFIRM: State.RUNNING,
        Event.FINISHED: State.KEEPING,
        Event.FINISHED_UNKEPT: State.UNKEPT,
    },
    State.KEEPING: {
        **_to(State.KEEPING_ABANDONED, _ENDINGS),
        Event.CONFIRM: State.KEEPING,
        Event.KEEP_RETURNED: State.KEPT,
        Event.KEEP_RAISED: State.DISCARD_DUE,  # it may have taken half
    },
    State.KEEPING_ABANDONED: {
        **_to(State.KEEPING_ABANDONED, (*_ENDINGS, Event.CONFIRM)),
        **_to(State.DISCARD_DUE, (Event.KEEP_RETURNED, Event.KEEP_RAISED)),
    },
    State.KEPT: {
        **_to(State.DISCARD_DUE, _ENDINGS),
        Event.CONFIRM: State.KEPT,
        Event.REPLIED: State.REPLIED,
    },
    State.UNKEPT: {
        **_to(State.ABORTED, _ENDINGS),
        Event.CONFIRM: State.UNKEPT,
        Event.REPLIED: State.REPLIED_UNKEPT,
    },
    State.REPLIED: _replied(State.DISCARD_DUE, State.REPLIED),
    State.REPLIED_UNKEPT: _replied(State.DISCARDED, State.REPLIED_UNKEPT),
    # The run's own task may not have heard yet that it was ended, so its steps up to the reply lose here.
    State.ABORTED: _to(
        State.ABORTED,
        (
            *_ENDINGS,
            Event.CONFIRM,
            Event.STARTED,
            Event.REFUSED,
            Event.ENVIRONMENT_FAILED,
            Event.FINISHED,
            Event.FINISHED_UNKEPT,
            Event.REPLIED,
        ),
    ),
    State.DISCARD_DUE: {
        **_to(State.DISCARD_DUE, (*_LATE, Event.REPLIED)),
        Event.DISCARD_BEGAN: State.DISCARDING,
    },
    State.DISCARDING: {
        **_to(State.DISCARDING, (*_LATE, Event.REPLIED, Event.DISCARD_BEGAN)),
        Event.DISCARD_RETURNED: State.DISCARDED,
        Event.DISCARD_RAISED: State.DISCARD_FAILED,
    },
    State.DISCARDED: _to(State.DISCARDED, (*_LATE, Event.REPLIED, Event.DISCARD_BEGAN)),
    State.DISCARD_FAILED: _to(State.DISCARD_FAILED, (*_LATE, Event.REPLIED, Event.DISCARD_BEGAN)),
    State.CONFIRMED: _to(State.CONFIRMED, _LATE),
    State.EXPIRED: _to(State.EXPIRED, _LATE),
}

_REPLIED: Final = frozenset({State.REPLIED, State.REPLIED_UNKEPT})
_DELIVERED: Final = frozenset({State.CONFIRMED, State.EXPIRED})
_CLOSED: Final = _DELIVERED | {State.ABORTED, State.DISCARDED, State.DISCARD_FAILED}
_SETTLED: Final = _CLOSED | {State.KEEPING_ABANDONED, State.DISCARD_DUE, State.DISCARDING}


class Entry:
    """One run in the ledger.

    Within a `RunTable`, settle through the table, which has to know when a window opens and when an entry
    closes.
    """

    __slots__ = ("cause", "key", "outcome", "request_id", "session_id", "state", "window_ends")

    def __init__(self, request_id: str, session_id: str = "") -> None:
        self.request_id: Final = request_id
        self.session_id: Final = session_id
        self.key = b""
        """What a table finds it by. The table sets it."""
        self.state = State.QUEUED
        self.cause: Event | None = None
        """The event that settled the run; None while it is open. Set once."""
        self.outcome: CancelOutcome | None = None
        """What every Cancel from the settlement on is answered; None while the run is open. Set once."""
        self.window_ends: float | None = None
        """Monotonic seconds at which the window ends; None before the reply. The table sets it."""

    @property
    def settled(self) -> bool:
        """Whether it is decided if the episode is delivered. `discard` may still have to run."""
        return self.state in _SETTLED

    @property
    def closed(self) -> bool:
        """Whether nothing can happen to the run any more."""
        return self.state in _CLOSED

    @property
    def replied(self) -> bool:
        """Whether the reply left and can still be taken back."""
        return self.state in _REPLIED

    @property
    def delivered(self) -> bool:
        """Whether the episode is delivered for good."""
        return self.state in _DELIVERED

    @property
    def discard_due(self) -> bool:
        """Whether `discard` must be called now and nobody has begun to. Claim it with DISCARD_BEGAN."""
        return self.state is State.DISCARD_DUE

    def settle(self, event: Event) -> bool:
        """Apply `event`. True for the one caller that moved the entry on; False for one that lost.

        Synchronous on purpose: no await between the test and the change, so on one event loop nobody can
        slip in between. The winner, and only the winner, goes on to call the hook: after a True that left
        `discard_due`, whoever gets True for DISCARD_BEGAN calls `discard`.

        Raises:
            LedgerError: `event` is impossible in this state. Nothing was changed.
        """
        following = _NEXT[self.state].get(event)
        if following is None:
            raise LedgerError(
                f"run {self.request_id[:8]}: {event.name} is impossible in state {self.state.name}, which "
                f"takes {', '.join(possible.name for possible in _NEXT[self.state])}; the ledger is "
                "unchanged, mend the code that sent it"
            )
        if following is self.state:
            return False
        if self.cause is None and following in _SETTLED:
            self.cause = event
            self.outcome = self._outcome(following)
        self.state = following
        return True

    def _outcome(self, following: State) -> CancelOutcome:
        if following in _DELIVERED:
            return CancelOutcome.TOO_LATE
        return CancelOutcome.DISCARDED if self.replied else CancelOutcome.ABORTED


def diagram() -> str:
    """The table as a mermaid `stateDiagram-v2`: one line for each pair of states, lost events left out."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.QUEUED.name}"]
    for state, row in _NEXT.items():
        targets: dict[State, list[str]] = {}
        for event, following in row.items():
            if following is not state:
                targets.setdefault(following, []).append(event.name)
        for following, names in targets.items():
            lines.append(f"    {state.name} --> {following.name}: {', '.join(names)}")
        if state in _CLOSED:
            lines.append(f"    {state.name} --> [*]")
    return "\n".join(lines) + "\n"
