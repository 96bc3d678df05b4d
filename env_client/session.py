"""The client's session: it makes deliveries final, and its end tells the server that the client is gone.

Like cancels (`courier`), confirmations must not depend on the caller's event loop, which may be blocked or
torn down: the session travels on a synchronous channel, and a thread of its own drives it, for either client.
"""

from __future__ import annotations

import copy
import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from envtrio.v1.env_service_pb2 import SessionRequest, SessionResponse

from env_client.channels import SESSION_METHOD
from env_client.confirmations import Verdict
from env_client.errors import SessionEndedError, shown_id
from env_client.home import Home
from env_client.request import new_request_id
from env_client.session_driver import Closing, SessionDriver, SessionEvent, Settlement, Ticket, Withdrawn

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc

    from env_client.courier import CancelCourier

_LOG: Final = logging.getLogger(__name__)


class Session:
    """A session with one server, for as long as its client lives.

    It is opened at the first run. A stream that breaks is followed by one of the next epoch, which repeats
    what was not answered. A server without sessions, or one that ends it for good, is not asked again.
    It belongs to the process that opened it: one that was not opened before a fork is another in each child.

    Args:
        open_channel: makes the channel, in the session's thread.
        owns_channel: whether the session closes it.
        clock: monotonic seconds.

    Attributes:
        home: the process that opened it.
        session_id: its id; empty until it is opened.
    """

    def __init__(
        self,
        open_channel: Callable[[], grpc.Channel],
        *,
        owns_channel: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.home: Final = Home()
        self.session_id = ""
        self._open_channel = open_channel
        self._owns_channel = owns_channel
        self._clock = clock
        # As in the courier: put() never blocks and may interrupt itself, and the lock is reentrant.
        self._events: queue.SimpleQueue[SessionEvent] = queue.SimpleQueue()
        self._starting = threading.RLock()
        self._thread: threading.Thread | None = None
        # What whoever comes after the end gets; None until then.
        self._last_word: Settlement | None = None

    def open(self) -> str:
        """Open it, if it is not, and return its id. Does not wait for the server.

        Raises:
            SessionEndedError: the server has ended it for good.
            RuntimeError: it was opened before this process was forked.
        """
        self.home.claim()
        if self._thread is None:
            with self._starting:
                self._start()
        if isinstance(self._last_word, SessionEndedError):
            raise copy.copy(self._last_word)  # Each caller has a traceback of its own.
        return self.session_id

    def confirm(self, request_id: str, settle: Callable[[Settlement], object]) -> Ticket:
        """Confirm an episode that was assembled and checked; opens the session if need be.

        Args:
            request_id: the run.
            settle: called once with what it came to, in any thread; must not block or raise. A ticket that is
                withdrawn may not be settled, or in vain.

        Raises:
            RuntimeError: it was opened before this process was forked.
        """
        self.home.claim()
        ticket = Ticket(request_id, settle)
        self._put(ticket)
        if self._thread is None:
            with self._starting:
                self._start()
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """Nobody waits for it any more: it is not sent, or not again. Returns at once, never raises."""
        self._put(Withdrawn(ticket))

    def close(self, timeout: float) -> None:
        """Let what waits be answered, then say goodbye, in at most `timeout` seconds. Idempotent."""
        if self.home.is_foreign:
            return
        with self._starting:
            if self._thread is None and self._last_word is None:
                self._end(Verdict.UNANSWERED)
        if self._thread is not None:
            self._put(Closing(self._clock() + timeout))
            # The thread leaves by itself at that deadline; more only guards against a channel that hangs.
            self._thread.join(timeout + 1.0)

    def _put(self, event: SessionEvent) -> None:
        self._events.put(event)
        # After the put, as `_end` sets it before it looks into the queue: one of the two finds the event.
        if self._last_word is not None:
            self._end(self._last_word)

    def _end(self, last_word: Settlement) -> None:
        self._last_word = last_word
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                return
            if isinstance(event, Ticket):
                event.settle(last_word)

    def _start(self) -> None:
        if self._thread is not None or self._last_word is not None:
            return
        # Not in __init__: a session that two forks shared would be lost to both when one of them ends.
        self.session_id = new_request_id()
        thread = threading.Thread(target=self._live, name="envtrio-session", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # The interpreter is ending and starts no threads any more.
            self._end(Verdict.UNANSWERED)
        else:
            self._thread = thread

    def _live(self) -> None:
        channel = self._open_channel()
        method: Any = channel.stream_stream(
            SESSION_METHOD, SessionRequest.SerializeToString, SessionResponse.FromString
        )
        driver = SessionDriver(method, self.session_id, self._events, self._clock)
        try:
            last_word = driver.drive()
        except Exception as error:
            # Nobody may wait for ever, whatever the fault, or if the channel was closed by its owner.
            last_word = SessionEndedError(
                f"session {shown_id(self.session_id)}: it broke: {type(error).__name__}: {error}; close this "
                "client, make a new one, and report it unless its channel was closed"
            )
            _LOG.exception("%s", last_word)
        # First, so that whoever learns of it below, and then starts a run, is refused.
        self._last_word = last_word
        driver.end(last_word)
        self._end(last_word)
        if self._owns_channel:
            channel.close()


def part(courier: CancelCourier, session: Session, timeout: float) -> None:
    """Close both in at most `timeout` seconds: first the cancels leave, then the goodbye."""
    deadline = time.monotonic() + timeout
    courier.close(timeout)
    session.close(max(0.0, deadline - time.monotonic()))
