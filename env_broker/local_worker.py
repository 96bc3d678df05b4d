"""One local worker: its process, its output, its restarts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Final

from env_broker.log_tail import LogTail
from env_broker.tasks import first_of

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Sequence

    from env_broker.clock import Clock

log = logging.getLogger(__name__)

STEADY_SECONDS: Final = 60.0
"""A worker that lived this long is restarted at once."""

_FIRST_DELAY_SECONDS: Final = 0.5
_LAST_DELAY_SECONDS: Final = 15.0
_HOPEFUL_FAILURES: Final = 3
"""So many starts in a row without a registration, and runs no longer wait for this worker."""
_REPORTED_LINES: Final = 10
_REPORTED_CHARACTERS: Final = 800


def restart_delay(failures: int) -> float:
    """Seconds before the restart after so many exits in a row: at once, then 0.5 s doubling to 15 s."""
    if failures <= 1:
        return 0.0
    return min(_FIRST_DELAY_SECONDS * 2.0 ** min(failures - 2, 16), _LAST_DELAY_SECONDS)


class LocalWorker:
    """A place in the pool that is filled with one process after another.

    Args:
        slot: its number, from 0.
        command: the process's command line.
        on_change: called when its prospects have changed.
    """

    def __init__(
        self, slot: int, command: Sequence[str], clock: Clock, on_change: Callable[[], None]
    ) -> None:
        self.slot: Final = slot
        self._command: Final = tuple(command)
        self._clock: Final = clock
        self._on_change: Final = on_change
        self._process: Process | None = None
        self._tail = LogTail()
        self._ended = asyncio.Event()
        self._stopping: Final = asyncio.Event()
        self._instance = ""
        """Of the process that has registered; empty until it has."""
        self._exits = 0
        self._starts_in_vain = 0
        self.last_exit = ""
        """How its last process ended, for people; empty before."""
        self._last_instance = ""

    @property
    def pid(self) -> int | None:
        """Its process, or None while there is none."""
        return None if self._process is None else self._process.pid

    @property
    def hopeful(self) -> bool:
        """Whether its process is expected to register soon."""
        return not self._instance and not self._stopping.is_set() and self._starts_in_vain < _HOPEFUL_FAILURES

    def registered(self, instance: str) -> None:
        """Its process has registered as that instance."""
        self._instance = instance
        self._starts_in_vain = 0

    async def run(self) -> None:
        """Keep the place filled until `stop`. Cancelling it leaves no process behind."""
        while not self._stopping.is_set():
            started = self._clock.now()
            try:
                await self._live()
            except OSError as error:
                self.last_exit = f"worker {self.slot} could not be started: {error}"
                log.error("slot=%d cannot start: %s", self.slot, error)
            if self._stopping.is_set():
                return
            steady = self._clock.now() - started >= STEADY_SECONDS
            self._exits = 1 if steady else self._exits + 1
            self._starts_in_vain += not self._instance
            self._instance = ""
            self._on_change()
            await self._pause(restart_delay(self._exits))

    async def last_words(self, instance: str, seconds: float) -> str:
        """How that instance ended and what it logged last; waits up to `seconds` for its end."""
        if instance == self._instance:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), seconds)
        return self.last_exit if instance == self._last_instance else ""

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal; none where it has ended."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def stop(self) -> None:
        """Start no further process, and tell the one there is to drain and stop."""
        self._stopping.set()
        self.signal(signal.SIGTERM)

    async def _pause(self, seconds: float) -> None:
        if seconds:
            await first_of(self._clock.sleep(seconds), _wait(self._stopping))

    async def _live(self) -> None:
        """One process, from its start to its end."""
        self._ended, self._tail = asyncio.Event(), LogTail()
        started = self._clock.now()
        process = self._process = await asyncio.create_subprocess_exec(
            *self._command,
            # It ends when this pipe closes, also where the broker dies without a word.
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**_inherited(), "ENV_WORKER_LOCAL_SLOT": str(self.slot), "PYTHONUNBUFFERED": "1"},
            # A Ctrl-C at the terminal is for the broker, which then drains its workers.
            start_new_session=True,
        )
        try:
            if self._stopping.is_set():
                self.stop()  # it was asked to stop while the process was being made
            log.info("slot=%d pid=%d started", self.slot, process.pid)
            drained = asyncio.create_task(self._drain(process))
            code = await process.wait()
            # A grandchild may hold the pipe open; its words are not waited for.
            await asyncio.wait({drained}, timeout=0.5)
            drained.cancel()
            self._report(code, self._clock.now() - started)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            self._process = None
            self._ended.set()

    def _report(self, code: int, seconds: float) -> None:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        before = "" if self._instance else " before it registered"
        lines = " | ".join(self._tail.last(_REPORTED_LINES))[-_REPORTED_CHARACTERS:]
        said = f"; its last lines: {lines}" if lines else "; it logged nothing"
        self._last_instance = self._instance
        self.last_exit = f"worker {self.slot} {how} after {seconds:.1f} s{before}{said}"
        if self._stopping.is_set() and code == 0:
            log.info("slot=%d stopped", self.slot)
        else:
            log.error("slot=%d %s", self.slot, self.last_exit)

    async def _drain(self, process: Process) -> None:
        """Forward its output line by line: a pipe that is not read would stop it."""
        assert process.stdout is not None
        tail = self._tail
        while data := await process.stdout.read(65_536):
            self._forward(tail.feed(data))
        self._forward(tail.finish())

    def _forward(self, lines: Sequence[str]) -> None:
        for line in lines:
            print(f"[worker {self.slot}] {line}", file=sys.stderr)
        if lines:
            sys.stderr.flush()


def _inherited() -> dict[str, str]:
    """The environment without an address that only one of the workers could have."""
    return {name: value for name, value in os.environ.items() if name != "ENV_WORKER_ADVERTISE"}


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
