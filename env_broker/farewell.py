"""Waiting for what shall end when a broker stops, and not in silence."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from env_broker.leftovers import stopped
from env_broker.tasks import first_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from env_broker.clock import Clock

log = logging.getLogger(__name__)

REPORT_SECONDS: Final = 10.0
"""No wait is silent for longer."""


async def waited(clock: Clock, seconds: float, what: Callable[[], str]) -> None:
    """Return after so many seconds, and log now and then what is waited for: nothing while that is empty."""
    ends = clock.now() + seconds
    while (left := ends - clock.now()) > REPORT_SECONDS:
        await clock.sleep(REPORT_SECONDS)
        if said := what():
            log.warning("the stop waits for %s, for up to %.0f s more", said, left - REPORT_SECONDS)
    await clock.sleep(max(0.0, left))


class Farewell:
    """Waits for local workers that were told to stop.

    Args:
        seconds: how long at most.
        hurried_seconds: how long at most after `hurry`.
        pids: the processes that are alive.
    """

    def __init__(
        self, *, clock: Clock, seconds: float, hurried_seconds: float, pids: Callable[[], Collection[int]]
    ) -> None:
        self._clock: Final = clock
        self._seconds: Final = seconds
        self._hurried_seconds: Final = hurried_seconds
        self._pids: Final = pids
        self._hurried: Final = asyncio.Event()

    def hurry(self) -> None:
        """Wait for less long."""
        if (said := self._said()) and not self._hurried.is_set():
            log.warning("the stop is hurried: %s have up to %g s more", said, self._hurried_seconds)
        self._hurried.set()

    async def wait(self, tasks: Collection[asyncio.Task[None]]) -> None:
        """Return once the tasks are done, or the time is up."""
        await first_of(_all(tasks), self._too_long())

    async def _too_long(self) -> None:
        await first_of(waited(self._clock, self._seconds, self._said), _set(self._hurried))
        if self._hurried.is_set():
            await waited(self._clock, self._hurried_seconds, self._said)

    def _said(self) -> str:
        pids = sorted(self._pids())
        halted = ", ".join(str(pid) for pid in pids if stopped(pid))
        which = (
            f" (stopped by SIGSTOP, which a second signal to the broker kills: {halted})" if halted else ""
        )
        return f"local workers pids={', '.join(map(str, pids))}{which}" if pids else ""


async def _all(tasks: Collection[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)


async def _set(event: asyncio.Event) -> None:
    await event.wait()
