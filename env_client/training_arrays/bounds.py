"""How long a call for arrays may go on, and whether anybody still wants it."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from env_client.errors import FetchCancelledError, FetchDeadlineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CallT = TypeVar("_CallT", bound=Any)


class CallBounds:
    """The bounds of one call of a client, of whose jobs several may work within them. Thread-safe.

    Args:
        timeout: seconds from now; None: no limit.
        clock: monotonic seconds.
    """

    def __init__(self, timeout: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout = timeout
        self._clock = clock
        self._ends_at = None if timeout is None else clock() + timeout
        self._cancelled = threading.Event()
        # Held for changes of the set only, so that `cancel` waits for nothing.
        self._lock = threading.Lock()
        self._calls: set[Any] = set()

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody wants it any more."""
        return self._cancelled.is_set()

    def begin(self) -> None:
        """The seconds count from now: those before, in which it waited for a thread, do not."""
        self._ends_at = None if self._timeout is None else self._clock() + self._timeout

    def seconds_left(self) -> float | None:
        """Seconds until the deadline, 0 at least; None without one."""
        return None if self._ends_at is None else max(0.0, self._ends_at - self._clock())

    def check(self, about: object) -> None:
        """Return if the work may go on.

        Args:
            about: what messages begin with, e.g. a reference.

        Raises:
            FetchCancelledError: nobody wants it any more.
            FetchDeadlineError: the deadline has passed.
        """
        # First, as at the deadline whoever waits for the call gives it up as well.
        if self.seconds_left() == 0.0:
            raise FetchDeadlineError(
                f"{about}: the call did not end within its {self._timeout:g} s: repeat it, with a larger "
                "timeout if the arrays are large"
            )
        if self.is_cancelled:
            raise FetchCancelledError(f"{about}: the call was given up before its end")

    def wait(self, seconds: float) -> None:
        """Wait so long, or less if the bounds end meanwhile; `check` then tells."""
        left = self.seconds_left()
        self._cancelled.wait(seconds if left is None else min(seconds, left))

    @contextmanager
    def calling(self, call: _CallT) -> Iterator[_CallT]:
        """A gRPC call, or whatever can be cancelled, that ends with these bounds, and with this context."""
        with self._lock:
            self._calls.add(call)
            is_late = self.is_cancelled
        try:
            if is_late:
                call.cancel()
            yield call
        finally:
            with self._lock:
                self._calls.discard(call)
            call.cancel()  # Does nothing to one that has ended.

    def cancel(self) -> None:
        """Nobody wants it any more: its gRPC calls end now, and `check` raises. Never blocks."""
        with self._lock:
            self._cancelled.set()
            calls = list(self._calls)
        for call in calls:
            call.cancel()
