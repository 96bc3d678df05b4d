"""The broker's own workers."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING, Final

from env_broker.local_worker import LocalWorker
from env_broker.tasks import background

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from env_broker.clock import Clock

log = logging.getLogger(__name__)

_LAST_WORDS_SECONDS: Final = 1.0


class Supervisor:
    """Keeps so many worker processes alive.

    Args:
        count: how many.
        on_change: called when the prospects of new workers have changed.
    """

    def __init__(self, count: int, *, clock: Clock, on_change: Callable[[], None]) -> None:
        self._count: Final = count
        self._clock: Final = clock
        self._on_change: Final = on_change
        self._workers: list[LocalWorker] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, command: Sequence[str]) -> None:
        """Start the workers, each by this command line, and keep them."""
        self._workers = [
            LocalWorker(slot, command, self._clock, self._on_change) for slot in range(self._count)
        ]
        self._tasks = [background(worker.run(), f"worker {worker.slot}") for worker in self._workers]

    @property
    def pids(self) -> list[int]:
        """The processes that are alive."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    def registered(self, slot: str, instance: str) -> None:
        """The local worker of that slot has registered as that instance."""
        if (worker := self._find(slot)) is not None:
            worker.registered(instance)

    def hopeful(self) -> bool:
        """Whether one is expected to register soon."""
        return any(worker.hopeful for worker in self._workers)

    def detail(self) -> str:
        """For people: how one ended last. May be empty."""
        return next((worker.last_exit for worker in self._workers if worker.last_exit), "")

    async def last_words(self, slot: str, instance: str) -> str:
        """How that instance in that slot ended and what it logged last; empty if it is not ours, or lives."""
        worker = self._find(slot)
        return "" if worker is None else await worker.last_words(instance, _LAST_WORDS_SECONDS)

    async def stop(self, seconds: float) -> None:
        """Let them drain, for at most `seconds`; then kill them. No process is left when it returns."""
        for worker in self._workers:
            worker.stop()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=seconds)
        if late:
            pids = self.pids
            log.error("pids=%s did not stop within %g s and are killed", pids, seconds)
            for worker in self._workers:
                worker.signal(signal.SIGKILL)
            _, late = await asyncio.wait(late, timeout=5.0)
        for task in late:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hurry(self) -> None:
        """Stop without waiting for runs and windows: a second signal says so to a worker."""
        for worker in self._workers:
            worker.signal(signal.SIGTERM)

    def _find(self, slot: str) -> LocalWorker | None:
        return next((worker for worker in self._workers if str(worker.slot) == slot), None)
