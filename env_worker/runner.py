"""All runs of a worker: admission, settlement, discards and windows. Knows no gRPC call, only ports."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from envtrio.v1 import errors_pb2

from env_worker.admission import Admission, refused
from env_worker.domain.ledger import CancelOutcome, Entry, Event
from env_worker.domain.runs import ConfirmOutcome, InvalidRequestIdError, RunTable, TableFullError
from env_worker.endings import ending
from env_worker.environment_loop import EnvironmentLoop
from env_worker.hook import HookThreads, current_hook
from env_worker.model.engines import close_connections
from env_worker.run import Run, RunSpec
from env_worker.run_services import Services
from env_worker.slots import Slots
from env_worker.status import Refusal
from env_worker.tasks import log_failure
from env_worker.wake_ups import WakeUps
from env_worker.window_bound import WindowBound

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from env_worker.config import WorkerSettings
    from env_worker.hook import EpisodeHook
    from env_worker.port import RunPort

logger = logging.getLogger(__name__)


class Runner:
    """Owns every run from its admission until it is closed. For one event loop.

    Every decision is one synchronous `settle`; whoever wins it calls the hook.

    Args:
        settings: places, queue, windows, threads.
        hook: whom to hand episodes; None: to the hook that is set when an episode finishes.
        adopt: called with a hook before it is used; raises where this worker cannot use it.
        clock, instance: monotonic seconds; the worker process, for episode heads.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        instance: str,
        hook: EpisodeHook | None = None,
        adopt: Callable[[EpisodeHook], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table: Final = RunTable(late_cancel_seconds=settings.late_cancel_seconds)
        self.slots: Final = Slots(settings.max_concurrent, settings.max_queue, settings.max_queue_bytes)
        self.counters: Final[Counter[str]] = Counter()
        self.draining = False
        self._bound: Final = WindowBound(
            brokered=settings.broker is not None, window_seconds=settings.late_cancel_seconds
        )
        self._clock: Final = clock
        self._loop: Final = asyncio.get_running_loop()
        self._threads: Final = HookThreads(settings.hook_threads, settings.hook_threads)
        self.take_keepers: Final = self._threads.take_keepers
        self.environments: Final = EnvironmentLoop(self._loop.call_soon, at_end=close_connections)
        self._runs: Final[dict[str, Run]] = {}
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._changed: Final = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        self._expiry_due = 0.0
        get_hook = current_hook if hook is None else lambda: hook
        self._admission: Final = Admission(self.table, self.slots, hook=get_hook, adopt=adopt, clock=clock)
        self._services: Final = Services(
            instance=instance,
            clock=clock,
            slots=self.slots,
            environments=self.environments,
            wake_ups=WakeUps(self._loop),
            threads=self._threads,
            hook=get_hook,
            adopt=adopt,
            settle=self.settle,
        )
        self.environments.start()

    @property
    def accepting(self) -> bool:
        """Whether a run would be taken now, if there is room for its training arrays."""
        return not (self.draining or self.slots.full)

    @property
    def no_array_room(self) -> str:
        """For people: why there is no room for a run's training arrays; empty where there is."""
        return self._admission.no_room

    @property
    def without_array_room(self) -> int:
        """Runs that were refused for that."""
        return self._admission.without_room

    async def wait_until(self, reached: Callable[[], bool]) -> None:
        """Wait until `reached()`, which is asked after every change."""
        while not reached():
            self._changed.clear()
            await self._changed.wait()

    async def wait_accepting(self, accepting: bool) -> None:
        """Wait until `accepting` is that."""
        await self.wait_until(lambda: self.accepting is accepting)

    # What callers ask.

    def start(self, spec: RunSpec, port: RunPort[Refusal], size: int = 0) -> Run:
        """Admit a run into the queue and carry it to `port`; its request has `size` bytes. Refusal if it is
        not admitted."""
        if self.draining:
            raise Refusal(
                errors_pb2.ERROR_REASON_DRAINING,
                "the worker stops and takes no new runs; send it elsewhere, or later",
            )
        run = Run(spec, self._admission.admit(spec, size), port, self._services)
        self._runs[spec.request_id] = run
        self._own(run.carry())
        self._changed.set()
        return run

    def cancel(self, request_id: str) -> CancelOutcome:
        """Take a run back. Refusal if the id is malformed, or the table of remembered cancels is full."""
        try:
            outcome = self.table.cancel(request_id, self._clock())
        except (InvalidRequestIdError, TableFullError) as error:
            raise refused(error, request_id) from error
        if (run := self._runs.get(request_id)) is not None:
            self._follow(run)
        return outcome

    def confirm(self, request_id: str) -> ConfirmOutcome:
        """Make a delivery final: its window is over now. InvalidRequestIdError if the id is malformed."""
        open_windows = self.table.open_windows
        outcome = self.table.confirm(request_id, self._clock())
        if self.table.open_windows < open_windows:
            self.counters["confirmed"] += 1
            self._runs.pop(request_id, None)
            self._changed.set()
            logger.debug("run=%s reason=CONFIRM state=CONFIRMED", request_id[:8])
        return outcome

    def lose_session(self, session_id: str) -> int:
        """The session did not come back: cancel its runs, live ones and replied ones; how many that ended."""
        runs = [run for run in self._runs.values() if run.entry.session_id == session_id]
        return sum(self.settle(run, Event.SESSION_LOST) for run in runs)

    def give_up(self, request_ids: list[str]) -> None:
        """A broker gave these runs up while this worker was away: discard what was kept for them."""
        for request_id in request_ids:
            try:
                outcome = self.cancel(request_id)
            except Refusal as refusal:
                logger.warning("run=%s given up by the broker: %s", request_id[:8], refusal.message)
            else:
                logger.info("run=%s given up by the broker, outcome=%s", request_id[:8], outcome.name)

    def caller_gone(self, run: Run) -> None:
        """The run's call is over, for whatever reason. After its delivery this means nothing."""
        self.settle(run, Event.DEADLINE if run.overdue else Event.CALLER_LOST)

    # How runs and their callers decide.

    def settle(self, run: Run, event: Event, refusal: Refusal | None = None) -> bool:
        """Apply `event` to the run. True for the one caller that moved it on; the rest follows from that,
        at once."""
        if not self.table.settle(run.entry, event, self._clock()):
            return False
        if event is Event.REPLIED:
            self.counters["replied"] += 1
            run.retire()
            self._arm_expiry()
        self._follow(run, refusal)
        return True

    def _follow(self, run: Run, refusal: Refusal | None = None) -> None:
        """What has to happen after the run's entry moved: answer, discard, forget."""
        entry = run.entry
        run.moved()
        if entry.settled:
            run.end(refusal or ending(entry))
        if entry.discard_due and self.table.settle(entry, Event.DISCARD_BEGAN, self._clock()):
            self._own(self._discard(run))
        if entry.closed and self._runs.pop(entry.request_id, None) is not None and entry.cause is not None:
            logger.info("run=%s reason=%s state=%s", run.name, entry.cause.name, entry.state.name)
            self._arm_expiry()
        self._changed.set()

    async def _discard(self, run: Run) -> None:
        assert run.hook is not None, "what is due for discard was kept by a hook"
        error = await self._threads.discard(run.hook, run.episode)
        self.counters["discarded" if error is None else "discard_failures"] += 1
        if error is not None:
            logger.error("run=%s discard raised; it is not tried again", run.name, exc_info=error)
        self.settle(run, Event.DISCARD_RETURNED if error is None else Event.DISCARD_RAISED)

    # Windows.

    def expire(self) -> None:
        """Close the windows that are over. Runs by itself; a test with a clock of its own calls it."""
        for entry in self.table.expire(self._bound.closable(self.table.next_expiry, self._clock())):
            self.counters["expired"] += 1
            logger.debug("run=%s reason=EXPIRE state=EXPIRED", entry.request_id[:8])
            self._runs.pop(entry.request_id, None)
        if not self._runs:
            self._runs.clear()  # an empty dict still has the room of its busiest time
        self._changed.set()
        self._arm_expiry()

    def heartbeat_acknowledged(self, sent_at: float) -> None:
        """The broker has answered the heartbeat of `sent_at` (seconds of the clock): it knows of what came
        before."""
        self._bound.heartbeat_acknowledged(sent_at)
        self.expire()

    def registered(self) -> None:
        """A broker has registered this worker, and hears now what it missed."""
        self._bound.registered(self._clock())

    def _arm_expiry(self) -> None:
        if (due := self.table.next_expiry) is None:
            due = self.table.last_forgetting  # nothing else may come by which they are forgotten
        else:
            due = self._bound.next_look(due)
        if due is None:
            return
        if self._expiry is not None:
            if self._expiry_due <= due:
                return  # it looks too early, and is armed again then: cheaper than a timer for each run
            self._expiry.cancel()
        self._expiry_due = due
        self._expiry = self._loop.call_later(max(0.0, due - self._clock()), self._look_for_expired)

    def _look_for_expired(self) -> None:
        self._expiry = None
        self.expire()

    # Stopping.

    def drain(self) -> None:
        """Take no new runs, and send those away that have not begun."""
        self.draining = True
        self._changed.set()
        for run in tuple(self._runs.values()):
            if not run.port.opened:
                self.settle(run, Event.REFUSED)

    def stop_runs(self) -> int:
        """End every run that has not replied; how many of them had begun. Keeps go on, windows stay open."""
        ended = [run for run in tuple(self._runs.values()) if self.settle(run, Event.STOP)]
        return sum(run.port.opened for run in ended)

    async def wait_replied(self) -> None:
        """Wait until no run is waiting or live."""
        runs = self._runs
        await self.wait_until(lambda: all(run.entry.replied or run.entry.settled for run in runs.values()))

    async def wait_windows(self) -> None:
        """Wait until no reply can be taken back any more."""
        await self.wait_until(lambda: not self.table.open_windows)

    async def wait_hooks(self) -> None:
        """Wait until no hook is at work."""
        await self.wait_until(lambda: not self.at_work())

    def at_work(self) -> list[Entry]:
        """The runs that are not closed and whose windows are not open: their hooks are at work."""
        return [run.entry for run in self._runs.values() if not run.entry.replied]

    async def close(self) -> None:
        """End the tasks and threads. Does not wait for hooks or environments that do not end."""
        if self._expiry is not None:
            self._expiry.cancel()
        self.environments.stop()
        self._threads.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for run in self._runs.values():
            run.unreserve()

    def _own(self, coroutine: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        log_failure(task)
        self._changed.set()
