"""When an elastic pool grows, and which worker it can do without.

Synchronous and without a clock, as `pool` is: `now` is monotonic seconds and must not run backwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from env_broker.pool import Worker

GROW_TENTHS: Final = 9
"""The pool grows when so many tenths of its slots are taken or asked for."""
SHRINK_TENTHS: Final = 6
"""It shrinks only where fewer are of those that would be left: so what it drains it does not start again."""
SHORT_SECONDS: Final = 0.75
"""So long are workers without a lease, until others are started for them. One that has died was found dead
and is started again by then, and runs that wait for it still do."""


class Local(NamedTuple):
    """The pool's own workers."""

    instances: Collection[str]
    """Those that have registered and are to stay."""
    size: int
    """All that are to stay: registered, starting, and those that lost their lease."""
    starting: int = 0
    """Those of them that have yet to register, also where they wait to be started again."""
    failing: int = 0
    """Those of them whose last start was in vain."""
    leaving: int = 0
    """Others, which drain and have yet to end; without those that are stopped, which may never."""


class Decision(NamedTuple):
    """What to do now."""

    grow: int = 0
    """So many more workers to start."""
    drain: str = ""
    """The instance of the worker to drain; empty for none."""
    spare: str = ""
    """The instance of the worker that shall get runs only where no other has room, so that it comes to rest
    under a light load too; empty for none."""
    give_up_start: bool = False
    """Whether one of the starts that fail shall not be tried again."""


class Scale:
    """Sizes a pool between `least` and `most` local workers.

    Args:
        idle_seconds: how long a worker must have had nothing before it is drained, and another must have had
            room for training arrays to count as one that has.
        heartbeat_seconds: how old a heartbeat can be when it is received.
        slots: of a local worker; None where only its registration will tell.
    """

    def __init__(
        self,
        *,
        least: int,
        most: int,
        idle_seconds: float,
        heartbeat_seconds: float,
        slots: int | None = None,
    ) -> None:
        self._least: Final = least
        self._most: Final = most
        self._idle_seconds: Final = idle_seconds
        self._heartbeat_seconds: Final = heartbeat_seconds
        self._slots = slots
        # instance -> its picks when it was first seen idle, and when that was.
        self._idle: dict[str, tuple[int, float]] = {}
        # instance -> when it was last seen without room for training arrays.
        self._full: dict[str, float] = {}
        self._spared = ""
        self._short_since: float | None = None

    def decide(
        self, now: float, workers: Iterable[Worker], local: Local, queued: int, stranded: int = 0
    ) -> Decision:
        """What to do with what is there now. Call it often: what is idle is known from what it is shown.

        Args:
            workers: all that local workers share their runs with, they themselves included.
            queued: runs that wait and that a local worker could carry.
            stranded: those of them for which none of those there has room for training arrays.
        """
        workers = tuple(workers)
        self._observe(now, workers)
        own = [worker for worker in workers if worker.instance in local.instances]
        if own:
            self._slots = own[-1].slots
        ready = [worker for worker in workers if not (worker.draining or worker.unreachable_because)]
        # One without room gives none of its slots, whatever it does with them.
        roomy = [worker for worker in ready if not worker.full_because]
        there = sum(worker.slots for worker in roomy)
        wanted = queued + sum(worker.taken for worker in roomy)
        present = len(own) + local.starting
        if grow := max(self._missing(wanted, there, stranded, local), self._short(now, present, local)):
            return Decision(grow=grow)
        if present <= self._least:
            return Decision()
        if local.failing and _calm(wanted, there):
            return Decision(give_up_start=True)
        if queued or local.leaving:
            return Decision()
        # One that was without room lately may be so again: another that was started for it stays.
        lasting = [worker for worker in ready if worker.instance not in self._full]
        wanted, there = sum(worker.taken for worker in lasting), sum(worker.slots for worker in lasting)
        dispensable = [w for w in own if _calm(wanted, there - (0 if w.instance in self._full else w.slots))]
        idle = [worker for worker in dispensable if self._is_idle(now, worker)]
        if idle:
            return Decision(drain=min(idle, key=lambda worker: self._idle[worker.instance][1]).instance)
        return Decision(spare=self._to_spare(dispensable))

    def _to_spare(self, dispensable: Collection[Worker]) -> str:
        """The same as before where it may be; else the one that has least to do."""
        if self._spared not in {worker.instance for worker in dispensable}:
            least = min(dispensable, key=_burden, default=None)
            self._spared = "" if least is None else least.instance
        return self._spared

    def _missing(self, wanted: int, there: int, stranded: int, local: Local) -> int:
        """How many more it takes, of those that there may be, until fewer than GROW_TENTHS of the slots are
        wanted; for stranded runs there are those only that are yet to come."""
        coming = local.starting * (self._slots or 0)
        missing = max(self._needed(wanted, there + coming), self._needed(stranded, coming))
        return max(0, min(missing, self._most - local.size))

    def _needed(self, wanted: int, slots: int) -> int:
        if not wanted or self._slots is None:
            return 0
        over = 10 * wanted - GROW_TENTHS * slots
        return 0 if over < 0 else over // (GROW_TENTHS * self._slots) + 1

    def _short(self, now: float, present: int, local: Local) -> int:
        """How many more it takes, of those that there may be, until the least are there again: those that
        lost their lease may be stopped, and never come back."""
        if present >= self._least:
            self._short_since = None
            return 0
        since = self._short_since = now if self._short_since is None else self._short_since
        if now - since < SHORT_SECONDS:
            return 0
        return max(0, min(self._least - present, self._most - local.size))

    def _observe(self, now: float, workers: Collection[Worker]) -> None:
        before, self._idle = self._idle, {}
        kept = {worker.instance for worker in workers}
        self._full = {
            instance: at
            for instance, at in self._full.items()
            if instance in kept and now - at < self._idle_seconds
        }
        for worker in workers:
            if worker.full_because:
                self._full[worker.instance] = now
            load = worker.load
            if not (worker.taken or load.running or load.open_windows or load.held_arrays):
                picks, since = before.get(worker.instance, (worker.last_picked, now))
                # One that was given a run, and has lost it again, since the last look was busy.
                since = since if picks == worker.last_picked else now
                self._idle[worker.instance] = (worker.last_picked, since)

    def _is_idle(self, now: float, worker: Worker) -> bool:
        """Whether it has had nothing for long enough, by its own word too: a heartbeat that it sent after its
        last run had ended."""
        if worker.instance not in self._idle or worker.reported_at is None:
            return False
        since = self._idle[worker.instance][1]
        heard = worker.reported_at - since >= self._heartbeat_seconds
        return heard and now - since >= self._idle_seconds


def _burden(worker: Worker) -> tuple[int, int, int]:
    return worker.load.held_arrays, worker.taken, worker.load.open_windows


def _calm(wanted: int, slots: int) -> bool:
    """Whether so many slots are far from full."""
    return 10 * wanted < SHRINK_TENTHS * slots
