"""What the thread of a session does: connect, confirm, repeat, give up, say goodbye."""

from __future__ import annotations

import logging
import queue
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from env_client.confirmations import Confirmations, Verdict, pause_seconds
from env_client.courier import DEFAULT_WINDOW_SECONDS
from env_client.errors import SessionEndedError, shown_id
from env_client.session_call import CallEvent, Ended, SessionCall, Writable
from env_client.statuses import env_error
from env_client.verdicts import VERDICTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from envtrio.v1.env_service_pb2 import ConfirmAnswers, SessionOpened

_LOG: Final = logging.getLogger(__name__)

# Opening it again would end the same way.
_FINAL_CODES: Final = frozenset(
    {"FAILED_PRECONDITION", "INVALID_ARGUMENT", "PERMISSION_DENIED", "UNAUTHENTICATED"}
)
_FINAL_REASONS: Final = frozenset({"SESSION_SUPERSEDED"})
Settlement: TypeAlias = Verdict | SessionEndedError
"""What a confirmation came to; the error, if the session was ended for good before it was answered."""


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A confirmation that was asked for. `settle` is called once, or never if it is withdrawn."""

    request_id: str
    settle: Callable[[Settlement], object]


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Nobody waits for this ticket any more."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Closing:
    """The client wants no more, and waits until `deadline` (of the session's clock)."""

    deadline: float


SessionEvent: TypeAlias = Ticket | Withdrawn | Closing | CallEvent


class SessionDriver:
    """Drives one session in one thread, from the events that others put into its queue.

    Args:
        method: makes a Session call.
        session_id: the session.
        events: what happens to it, in order.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        method: Any,
        session_id: str,
        events: queue.SimpleQueue[SessionEvent],
        clock: Callable[[], float],
    ) -> None:
        self._method = method
        self._session_id = session_id
        self._events = events
        self._clock = clock
        self._tickets: dict[str, Ticket] = {}
        self._confirmations = Confirmations(DEFAULT_WINDOW_SECONDS)
        self._call: SessionCall | None = None
        self._epoch = 0
        self._failures = 0
        self._connect_at = clock()
        self._is_opened = False
        self._said_goodbye = False
        self._closing: Closing | None = None

    def drive(self) -> Settlement:
        """Drive it to its end. Returns what whoever still waits, or comes later, gets."""
        while True:
            if self._call is None and self._clock() >= self._connect_at:
                self._epoch += 1
                self._call = SessionCall(self._method, self._session_id, self._epoch, self._events.put)
            last_word = self._take_events()
            if last_word is not None:
                return last_word
            for request_id in self._confirmations.expire(self._clock()):
                self._settle(request_id, Verdict.UNANSWERED)
            self._write()
            if self._closing is not None and self._may_leave(self._closing):
                return Verdict.UNANSWERED

    def end(self, last_word: Settlement) -> None:
        """Settle what waits and let the call go. Does not raise."""
        for request_id in self._confirmations.clear():
            self._settle(request_id, last_word)
        if self._call is not None:
            self._call.cancel()
            self._call.join()

    def _take_events(self) -> Settlement | None:
        """Wait for an event and handle what has come by then; what is there together is written together."""
        try:
            event = self._events.get(timeout=self._patience())
            while True:
                last_word = self._handle(event)
                if last_word is not None:
                    return last_word
                event = self._events.get_nowait()
        except queue.Empty:
            return None

    def _patience(self) -> float | None:
        times = [self._confirmations.wake_at()]
        if self._closing is not None:
            times.append(self._closing.deadline)
        if self._call is None:
            times.append(self._connect_at)
        known = [moment for moment in times if moment is not None]
        return max(0.0, min(known) - self._clock()) if known else None

    def _handle(self, event: SessionEvent) -> Settlement | None:
        if isinstance(event, Ticket):
            if self._confirmations.add(event.request_id, self._clock()):
                self._tickets[event.request_id] = event
            else:  # Two runs of one id were replied to: no server does that.
                event.settle(Verdict.UNANSWERED)
        elif isinstance(event, Withdrawn):
            if self._tickets.get(event.ticket.request_id) is event.ticket:
                del self._tickets[event.ticket.request_id]
                self._confirmations.withdraw(event.ticket.request_id)
        elif isinstance(event, Closing):
            self._closing = self._closing or event
        elif event.call is not self._call:
            pass  # Of an earlier epoch.
        elif isinstance(event, Ended):
            return self._ended(event)
        elif isinstance(event, Writable):
            pass  # The driver looks for what it can write after each event.
        elif event.response.HasField("opened"):
            self._opened(event.response.opened)
        elif event.response.HasField("confirm_answers"):
            self._answered(event.response.confirm_answers)
        return None

    def _opened(self, opened: SessionOpened) -> None:
        self._is_opened = True
        self._failures = 0
        if opened.late_cancel_seconds > 0:
            self._confirmations.window_seconds = opened.late_cancel_seconds
        _LOG.debug("session=%s: open, epoch %d", shown_id(self._session_id), self._epoch)

    def _answered(self, answers: ConfirmAnswers) -> None:
        now = self._clock()
        for answer in answers.answers:
            verdict = VERDICTS.get(answer.outcome)
            if self._confirmations.answer(answer.request_id, verdict, now) and verdict is not None:
                self._settle(answer.request_id, verdict)

    def _ended(self, event: Ended) -> Settlement | None:
        """The stream is over. Returns what that means for all that comes, or None: it is opened again."""
        event.call.join()
        self._call = None
        self._is_opened = False
        self._confirmations.disconnected()
        if self._said_goodbye:
            return Verdict.UNANSWERED
        error = None if event.error is None else env_error(event.error)
        shown = shown_id(self._session_id)
        if error is not None and error.code == "UNIMPLEMENTED":
            _LOG.info("session=%s: the server has no sessions; its window alone decides", shown)
            return Verdict.NOT_OFFERED
        if error is not None and (error.code in _FINAL_CODES or error.reason in _FINAL_REASONS):
            ended = SessionEndedError(
                f"session {shown}: the server ended it for good: {error}; no run of this client can be "
                "confirmed any more: mend what it says, then make a new client",
                code=error.code,
                reason=error.reason,
                metadata=error.metadata,
            )
            _LOG.error("%s", ended)
            return ended
        self._failures += 1
        pause = max(pause_seconds(self._failures), (error.retry_after if error else None) or 0.0)
        self._connect_at = self._clock() + pause
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        why = error or "the server ended it"
        _LOG.log(level, "session=%s: not open, tried again in %.2f s: %s", shown, pause, why)
        return None

    def _write(self) -> None:
        if self._call is None or not self._is_opened or self._said_goodbye:
            return
        now = self._clock()
        if self._confirmations.has_ready(now):
            if self._call.is_writable():
                self._call.confirm(self._confirmations.take_batch(now))
        elif self._closing is not None and not self._confirmations and self._call.is_writable():
            self._said_goodbye = True
            self._call.say_goodbye()

    def _may_leave(self, closing: Closing) -> bool:
        """Whether waiting longer would change nothing, or the time for it is over."""
        nothing_to_say = self._call is None and not self._confirmations
        return nothing_to_say or self._clock() >= closing.deadline

    def _settle(self, request_id: str, settlement: Settlement) -> None:
        self._tickets.pop(request_id).settle(settlement)
