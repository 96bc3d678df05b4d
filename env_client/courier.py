"""Cancels that leave whatever happens to the code that owes them.

A run is abandoned in `finally` blocks, in generators that the interpreter closes, while an event loop is
torn down: places that must not await. So cancels travel on a synchronous channel of their own, which one
thread drives.
"""

from __future__ import annotations

import atexit
import heapq
import logging
import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import grpc
from envtrio.v1.env_service_pb2 import (
    CancelOutcome,
    CancelRequest,
    CancelResponse,
    DescribeRequest,
    DescribeResponse,
)
from envtrio.v1.env_service_pb2_grpc import EnvServiceStub
from envtrio.v1.errors_pb2 import ErrorReason

from env_client.errors import shown_id
from env_client.home import Home
from env_client.request import PROTOCOL_GENERATION
from env_client.statuses import env_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LOG: Final = logging.getLogger(__name__)

DEFAULT_WINDOW_SECONDS: Final = 60.0
"""How long a cancel is repeated where the server did not say how long it can take a run back."""
_ATTEMPT_SECONDS: Final = 7.0  # A broker answers within 5 s, also for a worker that is silent.
_CAPACITY: Final = 65_536
_EXIT_SECONDS: Final = 3.0
_CAUSE_BYTES: Final = 256
# No longer, so that a server that is back is told while its window lasts.
_BACKOFF_SECONDS: Final = (0.1, 0.2, 0.5, 1.0)
_AWAY_ATTEMPTS: Final = 15
_WORKER_LOST: Final = ErrorReason.ERROR_REASON_WORKER_LOST
# Cancel is idempotent; these say that the next attempt may fare better. All others are answers.
_REPEATED: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
# What gRPC itself says when it, and not the server, has dropped the call: no answer, whatever the code.
_UNANSWERED: Final = frozenset(
    {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.ABORTED}
)


@dataclass(slots=True)
class _Letter:
    request_id: str
    cause: str
    sent_at: float
    attempts: int = 0
    # Whether a server has answered it once, be it that it remembers it.
    answered: bool = False
    # Whether that answer was that its worker is away.
    away: bool = False


@dataclass(frozen=True, slots=True)
class _Returned:
    letter: _Letter
    future: grpc.Future[CancelResponse]


@dataclass(frozen=True, slots=True)
class _Closing:
    deadline: float


_Event: TypeAlias = "_Letter | _Returned | _Closing"


class CancelCourier:
    """Sends cancels, and repeats them until a server took them or the window is over.

    It belongs to the process that sent the first one; in a fork of that it sends nothing.

    Args:
        open_channel: makes the channel, at the first cancel.
        window_seconds: how long a cancel is repeated. None: what `Describe` says, 60 s until it does.
        backoff_seconds: pauses between the attempts of one cancel; the last one repeats.
        away_attempts: how often, within the window, a server is asked about a run whose worker is
            away.
        capacity: cancels that are carried at once; beyond it the oldest is let go, with a line in the log.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        open_channel: Callable[[], grpc.Channel],
        *,
        window_seconds: float | None = None,
        backoff_seconds: Sequence[float] = _BACKOFF_SECONDS,
        away_attempts: float = _AWAY_ATTEMPTS,
        capacity: int = _CAPACITY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_channel = open_channel
        self._asks_window = window_seconds is None
        self._window_seconds = DEFAULT_WINDOW_SECONDS if window_seconds is None else window_seconds
        self._backoff_seconds = tuple(backoff_seconds)
        self._away_attempts = away_attempts
        self._capacity = capacity
        self._clock = clock
        # Its put() never blocks and may interrupt itself (a generator that is collected while we put).
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        # Reentrant for the same reason. Held while the thread is started, never while anything is waited for.
        self._starting = threading.RLock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._home = Home()
        # The rest belongs to the thread.
        self._stub: EnvServiceStub | None = None
        self._letters: dict[str, _Letter] = {}
        self._due: list[tuple[float, int, _Letter]] = []
        self._pauses = 0

    def send(self, request_id: str, cause: str) -> None:
        """Cancel a run. Returns at once, never raises, and may be called anywhere, `finally` included."""
        if self._home.is_foreign:
            _LOG.warning(
                "run=%s: not cancelled, it belongs to the process before the fork", shown_id(request_id)
            )
            return
        self._home.claim()
        short = cause.encode("utf-8", "replace")[:_CAUSE_BYTES].decode("utf-8", "ignore")
        self._events.put(_Letter(request_id, short, self._clock()))
        if self._closed:
            _LOG.warning("run=%s: not cancelled, the client is closed", shown_id(request_id))
        elif self._thread is None:
            with self._starting:
                self._start()

    def close(self, timeout: float) -> None:
        """Wait until each cancel was answered once, at most `timeout` seconds; then stop. Idempotent."""
        if self._home.is_foreign:
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        thread = self._thread
        if thread is not None and thread.is_alive():
            self._events.put(_Closing(self._clock() + timeout))
            # The thread leaves by itself at that deadline; more only guards against a channel that hangs.
            thread.join(timeout + 1.0)

    def _start(self) -> None:
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._carry, name="envtrio-cancels", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # The interpreter is ending and starts no threads any more.
            _LOG.warning("a cancel could not leave: the interpreter is ending")
        else:
            atexit.register(self._close_at_exit)

    def _close_at_exit(self) -> None:
        self.close(_EXIT_SECONDS)

    def _carry(self) -> None:
        channel = self._open_channel()
        self._stub = EnvServiceStub(channel)
        closing: _Closing | None = None
        try:
            while closing is None or (self._clock() < closing.deadline and self._owes()):
                event = self._next_event(closing)
                if isinstance(event, _Letter):
                    self._accept(event)
                elif isinstance(event, _Returned):
                    self._returned(event)
                elif isinstance(event, _Closing):
                    closing = event
                self._attempt_due()
        finally:
            for letter in self._letters.values():
                if not letter.answered:
                    _LOG.warning("run=%s: its cancel was not answered in time", shown_id(letter.request_id))
            channel.close()

    def _owes(self) -> bool:
        return not self._events.empty() or any(not letter.answered for letter in self._letters.values())

    def _next_event(self, closing: _Closing | None) -> _Event | None:
        until = [self._due[0][0]] if self._due else []
        if closing is not None:
            until.append(closing.deadline)
        try:
            return self._events.get(timeout=max(0.0, min(until) - self._clock()) if until else None)
        except queue.Empty:
            return None

    def _accept(self, letter: _Letter) -> None:
        if letter.request_id in self._letters:
            return
        if self._asks_window:
            self._asks_window = False
            self._ask_window()
        if len(self._letters) >= self._capacity:
            oldest = self._letters.pop(next(iter(self._letters)))
            _LOG.warning(
                "run=%s: its cancel is repeated no more, %d others wait; is the server gone?",
                shown_id(oldest.request_id),
                self._capacity,
            )
        self._letters[letter.request_id] = letter
        self._attempt(letter)

    def _ask_window(self) -> None:
        assert self._stub is not None
        request = DescribeRequest(protocol_generation=PROTOCOL_GENERATION)
        future = self._stub.Describe.future(request, timeout=_ATTEMPT_SECONDS)

        def learn(answer: grpc.Future[DescribeResponse]) -> None:
            # Cancelled: the courier was closed before the answer came.
            if not answer.cancelled() and answer.exception() is None:
                self._window_seconds = answer.result().late_cancel_seconds

        future.add_done_callback(learn)

    def _attempt(self, letter: _Letter) -> None:
        assert self._stub is not None
        letter.attempts += 1
        request = CancelRequest(
            request_id=letter.request_id, protocol_generation=PROTOCOL_GENERATION, cause=letter.cause
        )
        future = self._stub.Cancel.future(request, timeout=_ATTEMPT_SECONDS)
        future.add_done_callback(lambda answer: self._events.put(_Returned(letter, answer)))

    def _attempt_due(self) -> None:
        now = self._clock()
        while self._due and self._due[0][0] <= now:
            letter = heapq.heappop(self._due)[2]
            if self._letters.get(letter.request_id) is letter:
                self._attempt(letter)

    def _returned(self, event: _Returned) -> None:
        letter = event.letter
        if self._letters.get(letter.request_id) is not letter:
            return  # Let go for want of room.
        if self._is_settled(event) or self._clock() - letter.sent_at >= self._window_seconds:
            del self._letters[letter.request_id]
            return
        pause = self._backoff_seconds[min(letter.attempts, len(self._backoff_seconds)) - 1]
        if letter.away:
            pause = max(pause, self._window_seconds / self._away_attempts)
        self._pauses += 1
        heapq.heappush(self._due, (self._clock() + pause, self._pauses, letter))

    def _is_settled(self, event: _Returned) -> bool:
        letter, run = event.letter, shown_id(event.letter.request_id)
        letter.away = False
        if event.future.cancelled():
            return False
        error = event.future.exception()
        if error is None:
            letter.answered = True
            answer = event.future.result()
            outcome = answer.outcome
            _LOG.debug("run=%s: cancelled, outcome=%s", run, CancelOutcome.Name(outcome))
            if answer.reason == _WORKER_LOST:
                letter.away = True  # It may come back, and discard what it kept.
                return False
            return outcome != CancelOutcome.CANCEL_OUTCOME_REMEMBERED
        code = error.code() if isinstance(error, grpc.Call) else None
        if code in _REPEATED:
            return False
        if code in _UNANSWERED and isinstance(error, grpc.RpcError) and not env_error(error).reason:
            return False
        _LOG.warning("run=%s: its cancel was refused: %s", run, error)
        return True
