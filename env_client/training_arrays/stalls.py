"""Ends calls whose next frame does not come: the worker is there, but does not go on."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

import grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

STALL_SECONDS: Final = 60.0
"""How long a fetch that has begun may bring nothing. A worker bears a caller that takes nothing as long."""
FIRST_SECONDS: Final = 600.0
"""How long it may take to begin: a worker with very many fetches has some of them wait for their turn."""


class StalledError(Exception):
    """The next frame did not come in time, and the call was ended."""


class _Wait:
    """A call, and until when its next frame may take; None: nobody waits for it now."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.until: float | None = None
        self.is_over = False


class Stalls:
    """Watches over the calls of a client, by one thread while there are any. Thread-safe.

    gRPC's own deadline is for a whole call, however much it brings; its keepalive asks the process only,
    which answers also where the handler hangs.

    Args:
        look_seconds: how often the thread looks, and so how much too late it may be.
        clock: monotonic seconds.
    """

    def __init__(self, look_seconds: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._look_seconds = look_seconds
        self._clock = clock
        self._changed = threading.Condition()
        self._waits: set[_Wait] = set()
        self._thread: threading.Thread | None = None

    def frames(self, call: Any, seconds: float, first_seconds: float) -> Generator[bytes, None, None]:
        """The frames of a call, none of which takes longer than `seconds`, and the first `first_seconds`.

        Raises:
            StalledError: one did.
            grpc.RpcError: the call ended otherwise than OK.
        """
        wait = _Wait(call)
        self._add(wait)
        try:
            limit = first_seconds
            while True:
                wait.until = self._clock() + limit
                frame = next(call, None)
                # How long the caller takes for it is no fault of the worker.
                wait.until = None
                if frame is None:
                    return
                yield frame
                limit = seconds
        except grpc.RpcError:
            if wait.is_over:
                raise StalledError from None
            raise
        finally:
            with self._changed:
                self._waits.discard(wait)

    def close(self) -> None:
        """Let the thread end now, where nothing is watched any more, and not at its next look."""
        with self._changed:
            self._changed.notify_all()

    def _add(self, wait: _Wait) -> None:
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._watch, name="envtrio-stalls", daemon=True)
                thread.start()
                self._thread = thread
            self._waits.add(wait)

    def _watch(self) -> None:
        while True:
            with self._changed:
                self._changed.wait(self._look_seconds)
                if not self._waits:
                    self._thread = None
                    return
                now = self._clock()
                late = [wait for wait in self._waits if wait.until is not None and wait.until <= now]
            for wait in late:
                wait.is_over = True
                wait.call.cancel()
