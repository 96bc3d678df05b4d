"""Notices that an environment blocks the loop of all environments."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_worker.environment_loop import EnvironmentLoop

logger = logging.getLogger(__name__)

PING_SECONDS: Final = 0.5
"""How often the environments' loop is asked whether it still turns."""
WARN_SECONDS: Final = 5.0
"""A loop that was blocked for so long is named in the log; again after twice the time, and so on."""
_NOTICED_SECONDS: Final = 1.0


class StuckWatch:
    """Pings the environments' loop from the loop that serves the network.

    Time in which this process stood still (SIGSTOP, or an interpreter that an environment holds) does not
    count: then this loop is late itself, and a look adds at most two ping intervals. For one event loop.

    Args:
        environments: whose loop is watched.
        stuck_seconds: how long it may be blocked.
        give_up: called once, with what is wrong, when it was blocked for longer.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        environments: EnvironmentLoop,
        *,
        stuck_seconds: float,
        give_up: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._environments: Final = environments
        self._stuck_seconds: Final = stuck_seconds
        self._give_up: Final = give_up
        self._clock: Final = clock
        self._loop: Final = asyncio.get_running_loop()
        self._answered = False
        self._given_up = False
        self._blocked_seconds = 0.0
        self._next_warning = WARN_SECONDS
        self._looked_at = clock()
        self._ping()
        self._timer = self._loop.call_later(PING_SECONDS, self._look_and_go_on)

    def look(self) -> None:
        """See whether the last ping was answered. Runs by itself; a test with a clock of its own calls it."""
        now = self._clock()
        elapsed, self._looked_at = min(now - self._looked_at, 2 * PING_SECONDS), now
        if self._answered:
            if self._next_warning > WARN_SECONDS:
                logger.info("the environments' loop goes on, after %.1f s", self._blocked_seconds)
            self._blocked_seconds, self._next_warning = 0.0, WARN_SECONDS
            self._ping()
            return
        self._blocked_seconds += elapsed
        if self._blocked_seconds >= self._next_warning:
            self._next_warning *= 2
            logger.warning(
                "reason=STUCK %s; use what can be awaited, asyncio.to_thread, or --isolate process; the "
                "worker %s --stuck-seconds %g",
                self._described(), "has given up after" if self._given_up else "gives up after",
                self._stuck_seconds,
            )  # fmt: skip
        if self._blocked_seconds >= self._stuck_seconds and not self._given_up:
            self._given_up = True
            self._give_up(self._described())

    @property
    def blocked(self) -> str:
        """What blocks the loop now, for how long and where; empty while it turns."""
        if self._blocked_seconds < _NOTICED_SECONDS:
            return ""
        at = self._environments.whereabouts()
        return (
            f"run {at.run[:8] or 'unknown'} has blocked the environments' loop for "
            f"{self._blocked_seconds:.0f} s at {at.stack or 'an unknown place'}"
        )

    def close(self) -> None:
        """Stop watching."""
        self._timer.cancel()

    def _look_and_go_on(self) -> None:
        self._timer = self._loop.call_later(PING_SECONDS, self._look_and_go_on)
        self.look()

    def _ping(self) -> None:
        self._answered = False
        self._environments.ping(self._answer)

    def _answer(self) -> None:
        self._answered = True

    def _described(self) -> str:
        at = self._environments.whereabouts()
        others = len(self._environments) - bool(at.run)
        return (
            f"run={at.run[:8] or 'unknown'} has blocked the environments' loop for "
            f"{self._blocked_seconds:.1f} s at {at.stack or 'an unknown place'}; {others} other runs wait "
            "for it"
        )
