"""What SIGTERM and SIGINT do to a worker's process, from its first line to its last."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Handlers that are there all the time, because a signal that comes in a gap would end the process with a
    code that says nothing. For the main thread.

    Not `loop.add_signal_handler`: what it sets up is inherited by a child that an environment forks, and
    whoever then terminates that child stops the worker, and not the child.

    Args:
        at_start: called for a signal that comes before the worker serves.
    """

    def __init__(self, at_start: Callable[[], None] | None = None) -> None:
        self._previous: dict[signal.Signals, Any] = {}
        self._then: Callable[[str], None] | None = None if at_start is None else lambda _: at_start()
        self._forking: Final = threading.local()

    def install(self) -> None:
        """Handle the signals from now on. Again: take them back from whoever took them meanwhile."""
        if not self._previous:
            os.register_at_fork(
                before=self._before_fork,
                after_in_parent=self._after_fork,
                after_in_child=self._after_fork_in_child,
            )
        for number in NUMBERS:
            previous = signal.signal(number, self._handle)
            self._previous.setdefault(number, previous)
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            # Ignored, it has the system reap our children: nobody learns how they ended.
            self._previous.setdefault(signal.SIGCHLD, signal.signal(signal.SIGCHLD, signal.SIG_DFL))

    def serving(self, loop: asyncio.AbstractEventLoop, stop: Callable[[str], None]) -> None:
        """From now on a signal calls `stop` on the loop, with the signal's name."""

        def then(name: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(stop, name)

        self._then = then
        self.install()

    def over(self) -> None:
        """From now on a signal changes nothing: the process ends. Ignored by the system, as the interpreter
        takes its handlers away before it has ended."""
        for number in NUMBERS:
            signal.signal(number, signal.SIG_IGN)

    def restore(self) -> None:
        """Give them back to whoever had them before."""
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _handle(self, number: int, frame: object) -> None:
        if self._then is not None:
            self._then(signal.Signals(number).name)

    # To a forked child a signal means what it means to any process, from its first moment: one that came
    # before it has another handler would be dropped by the interpreter, and whoever sent it would wait.

    def _before_fork(self) -> None:
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)

    def _after_fork(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _after_fork_in_child(self) -> None:
        for number in NUMBERS:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL)
        self._after_fork()
