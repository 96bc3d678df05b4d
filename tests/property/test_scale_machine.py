"""Loads that come and go in any order: what the scale may never do, whatever happens."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from env_broker.pool import Load, Pool, Worker
from env_broker.scale import SHORT_SECONDS, Local, Scale

IDLE, HEARTBEAT, LOOK = 3.0, 1.0, 0.5


class Process:
    """A local worker as it is, not as its broker believes it to be."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.windows = 0
        self.arrays = 0
        self.under_way: list[tuple[float, Load]] = []

    @property
    def has_something(self) -> bool:
        return bool(self.worker.busy or self.windows or self.arrays)


class ScaledPool(RuleBasedStateMachine):
    """A pool whose workers start and end as the scale says, under any load."""

    @initialize(least=st.integers(1, 3), more=st.integers(1, 4), slots=st.integers(1, 5), told=st.booleans())
    def begin(self, least: int, more: int, slots: int, told: bool) -> None:
        self.least, self.most, self.slots = least, least + more, slots
        self.now = 0.0
        self.names = 0
        self.pool = Pool(lease_seconds=1e9)
        self.scale = Scale(
            least=least,
            most=self.most,
            idle_seconds=IDLE,
            heartbeat_seconds=HEARTBEAT,
            slots=slots if told else None,
        )
        self.processes: list[Process] = []
        self.leaving: list[Process] = []
        self.halted: list[Process] = []
        self.starting = self.least
        self.failing = 0
        self.queued = 0
        self.steps: list[str] = []
        for _ in range(self.least):
            self.register()

    @property
    def size(self) -> int:
        return len(self.processes) + len(self.halted) + self.starting

    def register(self) -> None:
        self.names += 1
        self.starting -= 1
        name = f"w{self.names}"
        self.pool.add(name, "l", f"{name}:1", ["e"], self.slots, 60.0, self.now)
        worker = self.pool.get(name)
        assert worker is not None
        self.processes.append(Process(worker))

    @property
    def stranded(self) -> int:
        """Runs that wait while all workers are without room."""
        there = [worker for worker in self.pool.workers() if not worker.draining]
        return self.queued if there and all(worker.full_because for worker in there) else 0

    def place(self) -> None:
        """What waits goes where a slot is free."""
        while self.queued and (worker := self.pool.pick("e")) is not None:
            self.pool.acquire(worker)
            self.queued -= 1

    def beats(self) -> None:
        """Heartbeats leave, and arrive up to a heartbeat later: they say what was then."""
        for process in (*self.processes, *self.leaving):
            for sent, load in tuple(process.under_way):
                if self.now - sent >= HEARTBEAT - LOOK:
                    process.under_way.remove((sent, load))
                    assert self.pool.heartbeat(process.worker.instance, "l", self.now, load=load)
            load = Load(process.worker.busy, process.windows, process.arrays)
            process.under_way.append((self.now, load))

    def look(self) -> None:
        kept = [process.worker.instance for process in (*self.processes, *self.halted)]
        local = Local(kept, self.size, self.starting, self.failing, len(self.leaving))
        stranded = self.stranded
        decision = self.scale.decide(self.now, self.pool.workers(), local, self.queued, stranded)
        assert decision.grow >= 0
        if stranded and not self.starting and self.size < self.most:
            assert decision.grow, "runs wait for ever: nobody has room, and nobody is started"
        if decision.grow:
            assert not decision.drain
            self.starting += decision.grow
            self.steps.append("grows ")
        if decision.give_up_start:
            assert self.failing
            self.starting, self.failing = self.starting - 1, self.failing - 1
        if decision.drain:
            process = next(p for p in self.processes if p.worker.instance == decision.drain)
            assert not process.has_something, "a worker that had something was drained"
            assert not self.leaving, "two were drained at once"
            self.pool.drain(decision.drain)
            self.processes.remove(process)
            self.leaving.append(process)
            self.steps.append("shrinks ")

    def step(self, seconds: float) -> None:
        for _ in range(round(seconds / LOOK)):
            self.now += LOOK
            self.beats()
            self.look()
            self.place()

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0, 8.0]))
    def time(self, seconds: float) -> None:
        self.step(seconds)

    @rule(runs=st.sampled_from([1, 2, 5, 20]))
    def runs_come(self, runs: int) -> None:
        self.queued += runs
        self.place()

    @rule(most=st.sampled_from([1, 3, 100]), first=st.integers(0, 2), held=st.sampled_from([0, 0, 1]))
    def runs_end(self, most: int, first: int, held: int) -> None:
        for process in self.processes[first:]:
            for _ in range(min(most, process.worker.busy)):
                self.pool.release(process.worker)
                process.windows += held
                process.arrays += held
        self.place()

    @rule(windows=st.booleans(), arrays=st.booleans())
    def what_is_held_goes(self, windows: bool, arrays: bool) -> None:
        for process in self.processes:
            process.windows *= not windows
            process.arrays *= not arrays

    @precondition(lambda self: self.processes)
    @rule(first=st.integers(0, 3), full=st.booleans())
    def room_goes_or_comes(self, first: int, full: bool) -> None:
        for process in self.processes[first:]:
            if full:
                self.pool.no_room(process.worker.instance, "full")
            else:
                self.pool.relent(process.worker.instance)
        self.place()

    @precondition(lambda self: self.starting)
    @rule()
    def one_registers(self) -> None:
        self.failing = min(self.failing, self.starting - 1)
        self.register()
        self.place()

    @precondition(lambda self: self.starting > self.failing)
    @rule()
    def a_start_fails(self) -> None:
        self.failing += 1

    @precondition(lambda self: self.leaving)
    @rule()
    def one_ends(self) -> None:
        process = self.leaving.pop()
        self.pool.remove(process.worker.instance, "l")

    @precondition(lambda self: self.processes)
    @rule()
    def one_is_stopped(self) -> None:
        process = self.processes.pop()
        self.pool.remove(process.worker.instance, "l")
        process.under_way.clear()
        self.halted.append(process)

    @precondition(lambda self: self.halted)
    @rule()
    def one_is_continued(self) -> None:
        self.halted.pop()
        self.starting += 1
        self.register()
        self.place()

    @rule()
    def the_least_are_there_again(self) -> None:
        """However many are stopped, as long as there may be others."""
        self.step(2 * SHORT_SECONDS)
        wanted = min(self.least, self.most - len(self.halted))
        assert len(self.processes) + self.starting >= wanted

    @rule()
    def the_load_stays_as_it_is(self) -> None:
        """All starts succeed, and all that drains ends."""
        before = len(self.steps)
        for _ in range(20):
            while self.starting:
                self.one_registers()
            while self.leaving:
                self.one_ends()
            self.step(2 * LOOK)
        steps = "".join(self.steps[before:])
        assert "shrinks grows" not in steps, f"it flapped under a load that did not change: {steps}"

    @invariant()
    def between_least_and_most(self) -> None:
        assert self.least <= self.size <= self.most

    @invariant()
    def nothing_waits_where_a_slot_is_free(self) -> None:
        assert not self.queued or self.pool.pick("e") is None


TestScaledPool: Any = ScaledPool.TestCase
TestScaledPool.settings = settings(max_examples=120, stateful_step_count=60)
