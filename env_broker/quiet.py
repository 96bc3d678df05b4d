"""The runs that the broker carries, and what the log says when they do not go on.

Synchronous and without a clock: `now` is monotonic seconds and must not run backwards.
"""

from __future__ import annotations

import heapq
import logging
import math
from typing import Final, NamedTuple

from env_broker.carried import CANCEL_SENT, Carried

SHOWN: Final = 5
"""Runs that are named at once."""
STRAGGLER_FACTOR: Final = 10
"""A single run is named when it was quiet for so many times `seconds`, while others go on."""

_LONGEST_PAUSE_SECONDS: Final = 3_600.0
_STALL_SECONDS: Final = 5.0
"""Checks come every second. After so long without one it was this process that stood still."""


class Line(NamedTuple):
    """One line for the log."""

    level: int
    text: str


class Quiet:
    """Finds out that nothing progresses.

    A run goes on when it gets a message from its worker, or passes it to its client, after the first one; or
    replies. That it came, was placed, said its prompt or left is no progress: runs come to a pool whose
    workers all hang, and give up there.

    Args:
        seconds: for how long no run has gone on when the log says so.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self._seconds: Final = seconds
        self._carried: Final[set[Carried]] = set()
        self._by_id: Final[dict[str, Carried]] = {}
        self._went_on = -math.inf
        """The last progress that is not in `_carried` any more. Idle time is left out."""
        self._emptied = -math.inf
        """When the last run left, while there is none."""
        self._checked = math.inf
        self._pause = 0.0
        """Until the next lines, while it is quiet; 0 while it is not."""
        self._next = -math.inf
        self._told = -math.inf
        """The last progress when the log said so."""
        self._told_over = True
        """Whether the log has said since that no run is there any more."""

    def __len__(self) -> int:
        return len(self._carried)

    def enter(self, request_id: str, now: float) -> Carried:
        """A run has come. Tell what this returns what happens to it."""
        if not self._carried:
            self._resume(now)
        carried = self._by_id[request_id] = Carried(request_id, now)
        self._carried.add(carried)
        return carried

    def leave(self, carried: Carried, now: float) -> None:
        """A run has ended."""
        self._carried.remove(carried)
        if self._by_id.get(carried.request_id) is carried:  # else its id has come again, while it was ending
            del self._by_id[carried.request_id]
        self._went_on = max(self._went_on, carried.went_on)
        self._emptied = now

    def cancel_sent(self, request_id: str, now: float) -> None:
        """A worker was asked to end a run. One that has left meanwhile is passed over."""
        if (carried := self._by_id.get(request_id)) is not None:
            carried.happened(CANCEL_SENT, now)

    def check(self, now: float) -> list[Line]:
        """What the log should say now. Call it every second."""
        stalled, self._checked = now - self._checked > _STALL_SECONDS, now
        if stalled:
            return []  # hear first what has come meanwhile
        if not self._carried:
            told_over, self._told_over = self._told_over, True
            return [] if told_over else [Line(logging.INFO, "no run is carried any more")]
        last = max(self._went_on, *(run.went_on for run in self._carried))
        went_on = self._over() if last > self._told else []
        silence = now - last
        if silence < self._seconds:
            return [*went_on, *self._behind(now)]
        if self._pause and now < self._next:
            return []
        self._told, self._told_over = last, False
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS) or self._seconds
        self._next = now + self._pause
        oldest = heapq.nsmallest(SHOWN, self._carried, key=lambda run: run.at)
        more = len(self._carried) - len(oldest)
        said = f"no run has gone on for {silence:.1f} s; the longest quiet of {len(self._carried)} follow"
        lines = [said, *(run.line(now) for run in oldest)]
        if more:
            lines.append(f"and {more} more; see the workers' logs, and `env-client top` for the pool")
        return [*went_on, *(Line(logging.WARNING, line) for line in lines)]

    def _resume(self, now: float) -> None:
        """Runs are there again. While there was nothing to do nothing was quiet; but a moment without runs is
        no progress: the callers of workers that hang give up together, and come again."""
        idle = now - self._emptied
        if idle < self._seconds:
            self._went_on += idle
            self._told += idle
        else:
            self._went_on = self._told = now
            self._pause = 0.0

    def _over(self) -> list[Line]:
        told, self._pause, self._told_over = self._pause, 0.0, True
        return [Line(logging.INFO, "runs go on again")] if told else []

    def _behind(self, now: float) -> list[Line]:
        """Runs that are quiet while others go on: each once, and not too many at a time."""
        limit = now - STRAGGLER_FACTOR * self._seconds
        behind = [run for run in self._carried if run.at <= limit and not run.told]
        lines: list[Line] = []
        for run in heapq.nsmallest(SHOWN, behind, key=lambda run: run.at):
            run.told = True
            lines.append(Line(logging.WARNING, f"while others go on this run does not: {run.line(now)}"))
        return lines
