"""One local worker: its process, its output, its restarts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import sys
import uuid
from typing import TYPE_CHECKING, Final

from env_broker.backoff import STEADY_SECONDS, restart_delay
from env_broker.ending import Ending
from env_broker.leftovers import MARK_VARIABLE, kill_leftovers
from env_broker.log_tail import LogTail
from env_broker.oversight import Oversight
from env_broker.tasks import first_of
from env_broker.worker_process import WorkerProcess
from env_broker.worker_variables import inherited

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from env_broker.clock import Clock

log = logging.getLogger(__name__)

_HOPEFUL_FAILURES: Final = 3
"""So many starts in a row without a registration, and runs no longer wait for this worker."""
_DEATH_SECONDS: Final = 1.0
"""So long after the end of its lease a process that has died was found dead."""


class LocalWorker:
    """A place in the pool that is filled with one process after another.

    Args:
        slot: its number, from 0.
        command: the process's command line.
        on_change: called when its prospects have changed.
        on_end: called when a process has ended.
        mute_seconds: how long a process that runs may be without a lease that it had, until it is killed.
        leave_seconds: how long a process that leaves may take, until it is killed.
        exits: so many processes in a row have ended in the place that it takes over.
    """

    def __init__(
        self,
        slot: int,
        command: Sequence[str],
        clock: Clock,
        on_change: Callable[[], None],
        *,
        on_end: Callable[[Ending], None] = lambda _: None,
        mute_seconds: float = 120.0,
        leave_seconds: float = 120.0,
        exits: int = 0,
    ) -> None:
        self.slot: Final = slot
        self._command: Final = tuple(command)
        self._clock: Final = clock
        self._on_change: Final = on_change
        self._on_end: Final = on_end
        self._mute_seconds: Final = mute_seconds
        self._leave_seconds: Final = leave_seconds
        self._process: WorkerProcess | None = None
        self._oversight: Oversight | None = None
        self._claim = ""
        self._started = clock.now()
        self._tail = LogTail()
        self._ended = asyncio.Event()
        self._leaving: Final = asyncio.Event()
        self._exits = exits
        self._starts_in_vain = 0
        self._killed_because = ""
        self._lost_lease_at: float | None = None
        self._last = Ending("", 0, "", "")
        self._again_at = clock.now()
        self.starts = 0
        """Processes that were started."""
        self.instance = ""
        """Of the process that has registered; empty until it has."""

    @property
    def pid(self) -> int | None:
        """Its process, or None while there is none."""
        return None if self._process is None else self._process.pid

    @property
    def leaving(self) -> bool:
        """Whether no further process will fill the place."""
        return self._leaving.is_set()

    @property
    def halted(self) -> bool:
        """Whether its process is stopped, as by SIGSTOP."""
        return self._oversight is not None and self._oversight.stopped

    @property
    def starting(self) -> bool:
        """Whether a process of it has yet to register, also one that waits to be started."""
        return not (self.instance or self.leaving)

    @property
    def failing(self) -> bool:
        """Whether it is starting after a start in vain."""
        return self.starting and self._starts_in_vain > 0

    @property
    def hopeful(self) -> bool:
        """Whether its process is expected to register soon. Also for a moment after it lost its lease: it is
        about to be found dead, most likely, and then another is started."""
        if self.leaving:
            return False
        return self._lost_lease_at is not None or (self.starting and self._starts_in_vain < _HOPEFUL_FAILURES)

    @property
    def condition(self) -> str:
        """What its process does, for people; empty while that is what it should."""
        if self._oversight is not None:
            return self._oversight.words(leaving=self.leaving)
        return f"it is started again in {math.ceil(max(0.0, self._again_at - self._clock.now()))} s"

    @property
    def last(self) -> Ending:
        """How its last process ended; without words before."""
        return self._last

    @property
    def exits(self) -> int:
        """Processes that have ended in a row, this one included; none before it if this one is steady."""
        return 1 if self._clock.now() - self._started >= STEADY_SECONDS else self._exits + 1

    def registered(self, claim: str, instance: str) -> bool:
        """Somebody has registered as that instance, and claims to be its process. False: it is not that.

        An environment of it may know the claim and start a worker with it, so the first instance is the one.
        """
        if self._process is None or claim != self._claim or self.instance not in ("", instance):
            return False
        self.instance, self._starts_in_vain, self._lost_lease_at = instance, 0, None
        if self._oversight is not None:
            self._oversight.registered()
        return True

    def lost_lease(self) -> None:
        """The lease that its process had is over."""
        self._lost_lease_at = self._clock.now()
        if self._oversight is not None:
            self._oversight.lost_lease()

    async def run(self) -> None:
        """Keep the place filled until it is left. Cancelling it leaves no process behind."""
        while True:
            await self._pause(restart_delay(self._exits))
            if self.leaving:
                return
            self._started = self._clock.now()
            # Not the same: all that its environments start inherits the mark.
            mark, self._claim = uuid.uuid4().hex, f"{self.slot}:{uuid.uuid4().hex}"
            try:
                process = WorkerProcess.start(self._command, self._variables(mark))
            except (OSError, RuntimeError) as error:  # no such program, no more processes, no more threads
                self._over(Ending.unstarted(self.slot, error))
                continue
            try:
                await self._live(process)
            finally:
                process.close()
                try:
                    await self._sweep(mark, process.pid)
                finally:  # not before: its group would be another's
                    process.reap()

    async def last_words(self, instance: str, seconds: float) -> str:
        """How that instance ended and what it logged last; waits up to `seconds` for its end."""
        if instance == self.instance:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), seconds)
        return self._last.words if instance and instance == self._last.instance else ""

    def look(self, now: float, *, leased: bool) -> None:
        """Kill a process that can no longer do what it should; `leased`: its registration stands."""
        if self._lost_lease_at is not None and now - self._lost_lease_at >= _DEATH_SECONDS:
            self._lost_lease_at = None
            self._on_change()
        if self._oversight is None or self._killed_because:
            return
        if why := self._oversight.look(now, leased=leased, leaving=self.leaving):
            self._kill(why)

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal; none where it has ended."""
        if self._process is not None:
            self._process.signal(number)

    def leave(self) -> None:
        """Start no further process; the one there is drains by itself."""
        self._leaving.set()

    def stop(self) -> None:
        """Start no further process, and tell the one there is to drain and stop, unless it does already."""
        if not self.leaving:  # a second signal would hurry it
            self.leave()
            self.signal(signal.SIGTERM)

    def hurry(self) -> None:
        """Tell it once more to stop; one that is stopped cannot hear it, and is killed."""
        if self.halted:
            self._kill("it is stopped (SIGSTOP), and the broker shall stop at once")
        else:
            self.signal(signal.SIGTERM)

    def _kill(self, why: str) -> None:
        self._killed_because = why
        log.error("slot=%d pid=%s worker=%s is killed: %s", self.slot, self.pid, self.instance[:8], why)
        self.signal(signal.SIGKILL)

    async def _pause(self, seconds: float) -> None:
        if seconds:
            await first_of(self._clock.sleep(seconds), _wait(self._leaving))

    async def _live(self, process: WorkerProcess) -> None:
        """One process, until its end."""
        self._process, self._ended, self._tail, self._killed_because = process, asyncio.Event(), LogTail(), ""
        self._oversight = Oversight(
            process.pid, mute_seconds=self._mute_seconds, leave_seconds=self._leave_seconds
        )
        self.starts += 1
        drained = asyncio.create_task(self._drain(process))
        try:
            if self.leaving:  # since the process was being made
                self.signal(signal.SIGTERM)
            log.info("slot=%d pid=%d started", self.slot, process.pid)
            await process.wait()
            # A grandchild may hold the pipe open; its words are not waited for.
            await asyncio.wait({drained}, timeout=0.5)
        finally:
            process.signal(signal.SIGKILL)
            code = await process.wait()
            drained.cancel()
            await asyncio.gather(drained, return_exceptions=True)
            self._over(self._ending(code))

    async def _sweep(self, mark: str, group: int) -> None:
        try:
            left = await asyncio.to_thread(kill_leftovers, mark, group)
        except RuntimeError as error:  # no more threads
            log.error("slot=%d cannot look for what its process left behind: %s", self.slot, error)
            return
        if left:
            log.warning("slot=%d had left processes behind, killed: %s", self.slot, ", ".join(left))

    def _over(self, ending: Ending) -> None:
        """A process has ended, or could not be started: from now on the place waits for the next."""
        self._last, self._process, self._oversight = ending, None, None
        self._exits = self.exits
        delay = restart_delay(self._exits)
        self._again_at = self._clock.now() + delay
        if not self.leaving:
            when = f"tries again in {delay:g} s" if delay else "tries again at once"
            log.error("slot=%d %s: %s", self.slot, when, ending.words)
        elif ending.code:
            log.error("slot=%d has left: %s", self.slot, ending.words)
        else:
            log.info("slot=%d stopped", self.slot)
        self._starts_in_vain += not self.instance
        self.instance, self._lost_lease_at = "", None
        self._ended.set()
        self._on_end(ending)
        self._on_change()

    def _ending(self, code: int) -> Ending:
        seconds = self._clock.now() - self._started
        return Ending.of(self.slot, self.instance, code, seconds, self._killed_because, self._tail)

    async def _drain(self, process: WorkerProcess) -> None:
        """Forward its output line by line: a pipe that is not read would stop it."""
        tail = self._tail
        async with contextlib.aclosing(process.output()) as output:
            async for data in output:
                self._forward(tail.feed(data))
        self._forward(tail.finish())

    def _forward(self, lines: Sequence[str]) -> None:
        for line in lines:
            sys.stderr.write(f"[worker {self.slot}] {line}\n")

    def _variables(self, mark: str) -> dict[str, str]:
        own = {"ENV_WORKER_LOCAL_SLOT": self._claim, MARK_VARIABLE: mark, "PYTHONUNBUFFERED": "1"}
        return {**inherited(os.environ), **own}


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
