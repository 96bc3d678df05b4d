"""The broker's own workers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from env_broker.clock import MonotonicClock
from env_broker.exit_code import losses
from env_broker.farewell import Farewell
from env_broker.local_view import LocalView
from env_broker.local_worker import LocalWorker
from env_broker.status import short
from env_broker.tasks import background

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from env_broker.clock import Clock
    from env_broker.ending import Ending

log = logging.getLogger(__name__)

_LAST_WORDS_SECONDS: Final = 1.0
_REMEMBERED: Final = 16
"""Workers that have left, whose last words may still be asked for."""


class Bounds(NamedTuple):
    """How long what a local worker does may last, in seconds; then it is killed."""

    mute: float = 120.0
    """Being without a lease that it had, while its process runs."""
    stop: float = 100.0
    """Draining, lingering and waiting for its hooks."""
    hurried: float = 10.0
    """The same after a second signal."""
    exit: float = 5.0
    """Ending, beyond that."""


class Supervisor:
    """Keeps so many worker processes alive: each fills a place of its own, with restarts of its own.

    Args:
        count: how many, until it is told to grow or to retire one.
        on_change: called when the prospects of new workers have changed.
        on_ended: called with the instance of a process that has ended, and how.
        drain: called with the instance of a worker that has registered although it shall leave.
    """

    def __init__(
        self,
        count: int,
        *,
        clock: Clock,
        on_change: Callable[[], None],
        on_ended: Callable[[str, str], None] = lambda instance, how: None,
        drain: Callable[[str], object] = lambda instance: None,
        bounds: Bounds = Bounds(),  # noqa: B008  # immutable
    ) -> None:
        self._count: Final = count
        self._clock: Final = clock
        self._on_change: Final = on_change
        self._on_ended: Final = on_ended
        self._drain: Final = drain
        self._bounds: Final = bounds
        self._command: tuple[str, ...] = ()
        self._workers: dict[int, LocalWorker] = {}
        self._past: Final[deque[LocalWorker]] = deque(maxlen=_REMEMBERED)
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._last_exit = ""
        self._stopping = False
        self._farewell: Final = Farewell(
            clock=MonotonicClock(),  # processes live by real seconds
            seconds=bounds.stop + bounds.exit,
            hurried_seconds=bounds.hurried + bounds.exit,
            pids=lambda: self.pids,
        )
        self._lost: Final[set[int]] = set()

    def start(self, command: Sequence[str]) -> None:
        """Start the workers, each by this command line, and keep them."""
        self._command = tuple(command)
        self.grow(self._count)

    @property
    def pids(self) -> list[int]:
        """The processes that are alive."""
        return [worker.pid for worker in self._workers.values() if worker.pid is not None]

    @property
    def size(self) -> int:
        """Workers that are kept, whatever state they are in."""
        return sum(not worker.leaving for worker in self._workers.values())

    @property
    def starting(self) -> int:
        """Those of them that have yet to register, also where they wait to be started again."""
        return sum(worker.starting for worker in self._workers.values())

    @property
    def failing(self) -> int:
        """Those of them whose last start was in vain."""
        return sum(worker.failing for worker in self._workers.values())

    @property
    def leaving(self) -> int:
        """Others, which have yet to end; without those that are stopped, which may never."""
        return sum(worker.leaving and not worker.halted for worker in self._workers.values())

    @property
    def instances(self) -> frozenset[str]:
        """Those that have registered, and are kept."""
        return frozenset(
            worker.instance for worker in self._workers.values() if worker.instance and not worker.leaving
        )

    @property
    def lost(self) -> frozenset[int]:
        """What the stop has lost here, as exit codes."""
        return frozenset(self._lost)

    def views(self) -> list[LocalView]:
        """All local workers, by their slots; those that leave too, until they have ended."""
        return [LocalView.of(worker) for _, worker in sorted(self._workers.items())]

    def grow(self, count: int) -> None:
        """Start so many more, in the lowest slots that are free."""
        for _ in range(count):
            self._add(exits=0)

    def retire(self, instance: str) -> bool:
        """That worker was told to drain: let it end and do not replace it. False: it is none of ours."""
        worker = self._by_instance(instance)
        if worker is None:
            return False
        worker.leave()
        return True

    def give_up_start(self) -> None:
        """Start one less: the highest slot whose start fails. Nothing where none does."""
        failing = [worker for worker in self._workers.values() if worker.failing]
        if failing:
            worker = max(failing, key=lambda worker: worker.slot)
            log.warning("slot=%d is given up, as nobody needs it: %s", worker.slot, worker.last.how)
            worker.stop()
            self._on_change()

    def registered(self, claim: str, instance: str) -> str:
        """Somebody has registered as that instance, with the claim that a local worker was started with.

        Returns its slot; empty if no process of ours is that worker.
        """
        worker = next((w for w in self._workers.values() if w.registered(claim, instance)), None)
        if worker is None:
            return ""
        if worker.leaving:
            self._drain(instance)  # the order did not reach it, or it has lost its lease meanwhile
        return str(worker.slot)

    def draining(self, instance: str) -> None:
        """That worker drains, as somebody told it to or it is stuck: replace it at once, if it is ours."""
        worker = self._by_instance(instance)
        if worker is None or worker.leaving or self._stopping:
            return
        log.warning("slot=%d worker=%s drains by itself and is replaced", worker.slot, short(instance))
        worker.leave()
        self._add(exits=worker.exits)
        self._on_change()

    def lost_lease(self, instance: str) -> None:
        """That worker is registered no longer."""
        if (worker := self._by_instance(instance)) is not None:
            worker.lost_lease()

    def look(self, leased: Collection[str]) -> None:
        """Kill what can no longer do its work; `leased`: the instances that are registered."""
        now = self._clock.now()
        for worker in tuple(self._workers.values()):
            worker.look(now, leased=worker.instance in leased)

    def hopeful(self) -> bool:
        """Whether one is expected to register soon."""
        return any(worker.hopeful for worker in self._workers.values())

    def detail(self) -> str:
        """For people: what keeps one from its work, or how one ended last. May be empty."""
        held = (
            f"worker {worker.slot}: {worker.condition}"
            for worker in self._workers.values()
            if worker.instance and worker.condition and not worker.leaving
        )
        return next(held, self._last_exit)

    async def last_words(self, slot: str, instance: str) -> str:
        """How that instance in that slot ended and what it logged last; empty if it is not ours, or lives."""
        candidates = (*self._workers.values(), *self._past)
        for worker in (worker for worker in candidates if str(worker.slot) == slot):
            if words := await worker.last_words(instance, _LAST_WORDS_SECONDS):
                return words
        return ""

    async def stop(self) -> None:
        """Let them drain, within their bounds; then kill them.

        No process is left when it returns, and `lost` says what was lost.
        """
        self._stopping = True
        for worker in self._workers.values():
            worker.stop()
        tasks = tuple(self._tasks)
        began = self._clock.now()
        await self._farewell.wait(tasks)
        if any(not task.done() for task in tasks):
            seconds = self._clock.now() - began
            log.error("pids=%s did not stop within %.1f s and are killed", self.pids, seconds)
            for worker in self._workers.values():
                worker.signal(signal.SIGKILL)
            await asyncio.wait(tasks, timeout=self._bounds.exit)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def hurry(self) -> None:
        """Stop without waiting for runs and windows: a second signal says so to a worker."""
        for worker in self._workers.values():
            worker.hurry()
        self._farewell.hurry()

    def _add(self, *, exits: int) -> None:
        if self._stopping:
            return
        slot = next(slot for slot in itertools.count() if slot not in self._workers)
        worker = self._workers[slot] = LocalWorker(
            slot,
            self._command,
            self._clock,
            self._on_change,
            on_end=self._ended,
            mute_seconds=self._bounds.mute,
            leave_seconds=self._bounds.stop + self._bounds.exit,
            exits=exits,
        )
        task = background(worker.run(), f"worker {slot}")
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._left(worker, done))

    def _left(self, worker: LocalWorker, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        del self._workers[worker.slot]
        self._past.append(worker)

    def _ended(self, ending: Ending) -> None:
        self._last_exit = ending.words
        if self._stopping:
            self._lost.update(losses(ending))
        if ending.instance:
            self._on_ended(ending.instance, ending.how)

    def _by_instance(self, instance: str) -> LocalWorker | None:
        return next((worker for worker in self._workers.values() if worker.instance == instance), None)
