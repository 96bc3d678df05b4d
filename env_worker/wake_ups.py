"""How other threads tell an event loop that something has changed."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

logger = logging.getLogger(__name__)

COALESCE_SECONDS: Final = 0.002
"""Changes that come so close together are told at once."""


class WakeUps:
    """All listeners of one event loop. While any of them is to be woken, a timer of that loop is armed: no
    other thread needs to wake the loop then, which costs more than most of what it is woken for.

    Args:
        loop: the loop in which listeners are called.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Final = loop
        self._waiting: Final[deque[WakeUp]] = deque()
        self._watched = False
        """Whether the loop looks at what waits by itself."""
        self._ripe = 0
        """How many of those that wait did so when the timer was armed: their time has come when it fires."""
        self._timer: asyncio.TimerHandle | None = None

    def listener(self, wake: Callable[[], None]) -> WakeUp:
        """What to call after each change, from any thread, so that `wake` is called in the loop."""
        return WakeUp(self, wake)

    def add(self, wake_up: WakeUp) -> None:
        """From any thread: `wake_up` is to be called when its time has come."""
        self._waiting.append(wake_up)
        if self._watched:
            return  # `_fire` says that it watches no longer before it looks for the last time
        self._watched = True
        try:
            self._loop.call_soon_threadsafe(self._watch)
        except RuntimeError:  # the loop is closed: nobody is left to be woken
            logger.debug("a change after the end of the loop")

    def _watch(self) -> None:
        # Two threads that race may both have the loop watch: one timer is enough.
        if self._timer is None:
            self._ripe = len(self._waiting)
            self._timer = self._loop.call_later(COALESCE_SECONDS, self._fire)

    def _fire(self) -> None:
        self._timer = None
        for _ in range(self._ripe):
            self._waiting.popleft().fire()
        if not self._waiting:
            self._watched = False
            if not self._waiting:
                return
            self._watched = True
        self._watch()


class WakeUp:
    """Has one listener woken after changes: many calls, one wake-up.

    It comes COALESCE_SECONDS after the first of them, or twice that where others wait already, because an
    environment writes a turn in several steps: a message costs more than what it carries.
    """

    __slots__ = ("_all", "_armed", "_wake")

    def __init__(self, all_of_loop: WakeUps, wake: Callable[[], None]) -> None:
        self._all: Final = all_of_loop
        self._wake: Final = wake
        self._armed = False

    def __call__(self) -> None:
        # Two threads that race here arm twice, which costs a wake-up too many. One too few cannot happen:
        # `fire` disarms before it wakes, so a change that finds it armed is before that wake-up's look.
        if not self._armed:
            self._armed = True
            self._all.add(self)

    def fire(self) -> None:
        """Wake the listener now."""
        self._armed = False
        self._wake()
