"""Whether a local worker's process does what it should, in words, and when it has to be killed."""

from __future__ import annotations

import math
from typing import Final

from env_broker.leftovers import stopped
from env_broker.patience import Patience

MUTE: Final = (
    "it runs, but has not renewed its lease for --stuck-seconds; an environment may hold its interpreter, "
    "which --isolate=process would contain"
)
_SLOW: Final = "it drains, lingers and ends for longer than it may"


class Oversight:
    """Over one process. The time in which it is stopped does not count: continued, it comes back as it was.

    Synchronous and without a clock: `now` is monotonic seconds and must not run backwards.

    Args:
        mute_seconds: how long it may run without a lease that it had.
        leave_seconds: how long it may take to leave.
    """

    def __init__(self, pid: int, *, mute_seconds: float, leave_seconds: float) -> None:
        self._pid: Final = pid
        self._mute: Final = Patience(mute_seconds)
        self._leave: Final = Patience(leave_seconds)
        self._registered = False
        self._leased = False
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether it is stopped now, as by SIGSTOP."""
        return stopped(self._pid)

    def registered(self) -> None:
        """It has a lease."""
        self._registered = self._leased = True

    def lost_lease(self) -> None:
        """It has none any more. That it runs without one is for the next look to say: most have died."""
        self._stopped = self.stopped

    def look(self, now: float, *, leased: bool, leaving: bool) -> str:
        """Call it several times a second. Why it has to be killed; empty if it has not."""
        self._leased, self._stopped = leased, self.stopped
        if leased or leaving or self._stopped or not self._registered:
            self._mute.renew(now)
        if self._mute.over(now, counts=True):
            return MUTE
        return _SLOW if self._leave.over(now, counts=leaving and not self._stopped) else ""

    def words(self, *, leaving: bool) -> str:
        """For people: what it does; empty while it has its lease and runs."""
        if self._stopped:
            return f"process {self._pid} is stopped (SIGSTOP); SIGCONT continues it, SIGKILL has it replaced"
        if self._leased:
            return ""
        if leaving:
            return f"process {self._pid} ends"
        if not self._registered:
            return f"process {self._pid} was started"
        left = math.ceil(max(0.0, self._mute.left))
        return f"process {self._pid} runs without a heartbeat, and is killed in {left} s"
