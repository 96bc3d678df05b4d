"""Notes what a client that was killed did not live to note."""

from __future__ import annotations

from tests.helpers.history import (
    Asked,
    BrokerDied,
    CancelAnswered,
    CancelSent,
    ConfirmAnswered,
    ConfirmSent,
    Ended,
    History,
    Returned,
    SessionLost,
    Uncertain,
)

_DEFINITE = frozenset({"ABORTED", "DISCARDED", "TOO_LATE"})


def bury(history: History, run: str, *, session: bool = True) -> None:
    """The caller of `run` was killed: it saw neither the status nor the answers that were due.

    Nobody knows whether a confirmation that was on its way arrived. And a broker cancels the runs of a lost
    session only where it saw that session open: where a broker was killed meanwhile, it may not have. Without
    a session the window alone decides about what was replied. What was over before is judged as ever.
    """
    concluded = _is_concluded(history, run)
    if not history.of(run, Ended):
        history.note(Ended, run, code="KILLED")
        if not session:
            history.note(Uncertain, run)  # the reply may have been on its way
    if session and not concluded:
        history.note(SessionLost, run)
        on_its_way = len(history.of(run, ConfirmSent)) > len(history.of(run, ConfirmAnswered))
        since = history.of(run, Asked)[0].seq
        if on_its_way or any(died.seq > since for died in history.of("", BrokerDied)):
            history.note(Uncertain, run)
    for _ in range(len(history.of(run, CancelSent)) - len(history.of(run, CancelAnswered))):
        history.note(CancelAnswered, run, outcome="KILLED")


def _is_concluded(history: History, run: str) -> bool:
    """Whether the caller had its episode for good, or the server had said how the run ended."""
    if history.of(run, Returned) or any(end.code != "OK" and end.reason for end in history.of(run, Ended)):
        return True
    return any(answer.outcome in _DEFINITE for answer in history.of(run, CancelAnswered))
