"""The store under keeps, releases, discards, fetches, expiries and reservations in every order.

An episode that is no larger than what was reserved for it always fits, unless others took more than theirs.
The machine knows what must be held: every branch that was kept and neither released, discarded nor expired,
and every segment that a fetch holds. The store must hold just that, never more than its budget (with the
files that are spare), and evict nothing. What was offered to another process stays as it is for good.
"""

from __future__ import annotations

import mmap
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from env_worker.arrays import spares
from env_worker.arrays.budget import RECENT_EPISODES
from env_worker.arrays.errors import ArrayBudgetError, ArrayBudgetExceededError, ArraysNotFoundError
from env_worker.arrays.layout import TraceLayout
from env_worker.arrays.segment import rounded
from env_worker.domain import TRAINING_ARRAY_FIELDS
from tests.helpers.array_episodes import (
    NO_SPARES,
    PAGE,
    expected_body,
    new_episode,
    new_store,
    open_segments,
    references,
)
from tests.helpers.clock import FakeClock

if TYPE_CHECKING:
    from env_worker.arrays.store import Fetch, Reservation

MEMORY, SPILL = 8 * PAGE, 6 * PAGE
LEASE = 10.0
OWNERS = ["", "me", "you"]

indices = st.integers(0, 30)


@dataclass(eq=False)
class Trace:
    """One segment, as the machine knows it."""

    size: int
    spilled: bool
    bodies: dict[str, bytes]
    """Key to body of the branches that must be found."""
    fetches: int = 0

    @property
    def held(self) -> bool:
        return bool(self.bodies or self.fetches)


@dataclass(eq=False)
class Kept:
    """One episode."""

    id: str
    owner: str
    traces: list[Trace]
    renewed_at: float
    discarded: bool = False

    @property
    def open(self) -> bool:
        return any(trace.bodies for trace in self.traces)


@dataclass(eq=False)
class Open:
    """A fetch under way."""

    fetch: Fetch
    body: bytes
    kept: Kept
    trace: Trace


@dataclass
class Counted:
    """What the store must have counted; of `recent` episodes the bytes."""

    kept: int = 0
    failed: int = 0
    released: int = 0
    discarded: int = 0
    expired: int = 0
    refused: int = 0
    recent: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Reserved:
    """A run that was admitted."""

    reservation: Reservation
    size: int
    """Bytes that it may count on; 0 where it may count on none: nothing was known, or others took more than
    theirs."""


class ArrayBudgetMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(spares, "LEAST_BYTES", 1)
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        NO_SPARES.clear()
        self.files = open_segments()
        self.store = new_store(
            self.clock,
            memory_bytes=MEMORY, spill_dir=Path(self.folder.name), spill_bytes=SPILL, lease_seconds=LEASE,
        )  # fmt: skip
        self.kept: list[Kept] = []
        self.gone: list[str] = []
        self.mapped: list[tuple[mmap.mmap, bytes]] = []
        self.fetches: list[Open] = []
        self.reservations: list[Reserved] = []
        self.counted = Counted()
        self.number = 0

    def held(self, spilled: bool) -> int:
        return sum(trace.size for trace in self.traces() if trace.held and trace.spilled is spilled)

    def media(self, sizes: list[int]) -> list[bool] | None:
        """Which of such traces must be spilled; None if they do not fit: memory comes first."""
        held, limits, media = [self.held(False), self.held(True)], [MEMORY, SPILL], []
        for size in sizes:
            spilled = held[False] + size > limits[False]
            held[spilled] += size
            if held[spilled] > limits[spilled]:
                return None
            media.append(spilled)
        return media

    def traces(self) -> list[Trace]:
        return [trace for kept in self.kept for trace in kept.traces]

    def branches(self) -> list[tuple[Kept, Trace, str]]:
        return [(kept, trace, key) for kept in self.kept for trace in kept.traces for key in trace.bodies]

    @rule(
        traces=st.integers(0, 3),
        branches=st.integers(1, 2),
        tokens=st.sampled_from([1, 100, 400]),
        owner=st.sampled_from(OWNERS),
        admitted=st.booleans(),
        offered=st.booleans(),
    )
    def keep(
        self, traces: int, branches: int, tokens: int, owner: str, admitted: bool, offered: bool
    ) -> None:
        self.number += 1
        episode = new_episode(f"{self.number}", owner=owner, traces=traces, branches=branches, tokens=tokens)
        sizes = [rounded(TraceLayout.of(trace, TRAINING_ARRAY_FIELDS).size) for trace in episode.traces]
        promised = False
        if admitted and self.reservations:
            run = self.reservations.pop()
            run.reservation.close()
            promised = sum(sizes) <= run.size <= max(MEMORY, SPILL)
        if (media := self.media(sizes)) is None:
            assert not promised, "broke: what was reserved is there"
            with pytest.raises(ArrayBudgetExceededError):
                self.store.keep(episode)
            self.counted.failed += 1
            if max(sizes) <= max(MEMORY, SPILL) and sum(sizes) <= MEMORY + SPILL:
                self.counted.recent.append(sum(sizes))
            return
        self.store.keep(episode)
        self.counted.kept += 1
        if not promised and sizes:
            for other in self.reservations:
                other.size = 0
        found = iter(references(episode))
        made = []
        for size in sizes:
            bodies = {
                one["key"]: expected_body(episode, one) for one in [next(found) for _ in range(branches)]
            }
            with self.store.open(next(iter(bodies)), (), 0, None) as fetch:
                if offered:
                    offer = fetch.offer()
                    assert offer is not None
                    assert int(offer["size"]) == size
                    if not fetch.spilled:
                        self.map(offer)
                made.append(Trace(size, fetch.spilled, bodies))
        self.kept.append(Kept(episode.id, owner, made, self.clock()))
        assert [trace.spilled for trace in made] == media
        self.counted.recent.append(sum(sizes))

    def map(self, offer: dict[str, str]) -> None:
        with open(f"/proc/self/fd/{offer['fd']}", "rb") as file:
            mapped = mmap.mmap(file.fileno(), int(offer["size"]), prot=mmap.PROT_READ)
        self.mapped.append((mapped, bytes(mapped)))

    @rule(picks=st.lists(indices, min_size=1, max_size=3))
    def release(self, picks: list[int]) -> None:
        there = self.branches()
        chosen = {
            key: (kept, trace) for pick in picks if there for kept, trace, key in [there[pick % len(there)]]
        }
        before = self.held(False) + self.held(True)
        released = self.store.release([*chosen, *self.gone[-1:]])
        for key, (kept, trace) in chosen.items():
            del trace.bodies[key]
            self.gone.append(key)
            self.counted.released += not kept.open
        assert released.released == len(chosen)
        assert released.bytes == before - self.held(False) - self.held(True)

    @rule(owner=st.sampled_from(OWNERS[1:]))
    def release_owner(self, owner: str) -> None:
        expected = [(kept, trace, key) for kept, trace, key in self.branches() if kept.owner == owner]
        released = self.store.release_owner(owner)
        self.counted.released += len({kept for kept, _, _ in expected})
        for _, trace, key in expected:
            del trace.bodies[key]
            self.gone.append(key)
        assert (released.released, released.not_found) == (len(expected), 0)

    @rule(pick=indices)
    def discard(self, pick: int) -> None:
        if not self.kept:
            return self.store.discard("0" * 32)
        kept = self.kept[pick % len(self.kept)]
        self.store.discard(kept.id)
        self.counted.discarded += kept.open
        self.drop(kept)

    def drop(self, kept: Kept) -> None:
        for trace in kept.traces:
            self.gone += trace.bodies
            trace.bodies.clear()

    @rule(pick=indices, read=st.booleans())
    def begin_fetch(self, pick: int, read: bool) -> None:
        there = self.branches()
        if not there:
            return
        kept, trace, key = there[pick % len(there)]
        fetch = self.store.open(key, (), 0, None)
        kept.renewed_at = self.clock()
        trace.fetches += 1
        self.fetches.append(Open(fetch, trace.bodies[key], kept, trace))
        if read:
            self.end_fetch(-1)

    @rule(pick=indices)
    def end_fetch(self, pick: int) -> None:
        if not self.fetches:
            return
        opened = self.fetches.pop(pick % len(self.fetches))
        assert b"".join(opened.fetch.pieces(999)) == opened.body, (
            "broke: a fetch gets its bytes, whatever ends"
        )
        opened.fetch.close()
        opened.fetch.close()
        opened.trace.fetches -= 1
        opened.kept.renewed_at = self.clock()

    @rule(pick=indices)
    def fetch_what_is_gone(self, pick: int) -> None:
        if self.gone:
            with pytest.raises(ArraysNotFoundError):
                self.store.open(self.gone[pick % len(self.gone)], (), 0, None)

    @rule(seconds=st.sampled_from([1.0, LEASE / 2, LEASE]))
    def expire(self, seconds: float) -> None:
        self.clock.advance(seconds)
        overdue = [
            kept
            for kept in self.kept
            if kept.open
            and not any(trace.fetches for trace in kept.traces)
            and self.clock() - kept.renewed_at >= LEASE
        ]
        assert self.store.expire() == len(overdue)
        self.counted.expired += len(overdue)
        for kept in overdue:
            self.drop(kept)

    @rule()
    def reserve(self) -> None:
        largest = max(self.counted.recent[-RECENT_EPISODES:], default=0)
        free = [MEMORY - self.held(False), SPILL - self.held(True)]
        if not largest:
            room = sum(free) > 0
        elif largest > max(MEMORY, SPILL):
            room = len(self.reservations) + 1 <= sum(free) // largest
        else:
            room = len(self.reservations) + 1 <= sum(one // largest for one in free)
        if room:
            self.reservations.append(Reserved(self.store.reserve(), largest))
            return
        with pytest.raises(ArrayBudgetError) as refused:
            self.store.reserve()
        assert refused.value.value >= refused.value.limit == MEMORY + SPILL
        self.counted.refused += 1

    @rule(pick=indices, twice=st.booleans())
    def unreserve(self, pick: int, twice: bool) -> None:
        if self.reservations:
            run = self.reservations.pop(pick % len(self.reservations))
            for _ in range(1 + twice):
                run.reservation.close()

    @invariant()
    def just_that_is_held(self) -> None:
        stats = self.store.stats()
        assert (stats.held_memory_bytes, stats.held_spill_bytes) == (self.held(False), self.held(True))
        assert stats.held_memory_bytes <= stats.limit_memory_bytes == MEMORY
        assert stats.held_spill_bytes <= stats.limit_spill_bytes == SPILL
        assert self.store.held_array_bytes == stats.held_bytes
        episodes = sum(any(trace.held for trace in kept.traces) for kept in self.kept)
        assert self.store.held_arrays == stats.held_episodes == episodes
        spare = self.store._spares.taken
        assert stats.held_memory_bytes + spare.bytes <= MEMORY
        files = sum(trace.held for trace in self.traces()) + spare.segments + len(self.mapped)
        assert open_segments() - self.files == files
        assert stats.open_fetches == len(self.fetches)
        assert stats.reservations == len(self.reservations)
        counted = self.counted
        assert (stats.kept_episodes, stats.failed_keeps) == (counted.kept, counted.failed)
        assert (stats.released_episodes, stats.discarded_episodes) == (counted.released, counted.discarded)
        assert (stats.expired_episodes, stats.refused_reservations) == (counted.expired, counted.refused)

    def teardown(self) -> None:
        for _, trace, key in self.branches():
            with self.store.open(key, (), 0, None) as fetch:
                assert b"".join(fetch.pieces()) == trace.bodies[key], "broke: nothing is evicted"
        while self.fetches:
            self.end_fetch(0)
        for owner in OWNERS[1:]:
            self.release_owner(owner)
        for kept in self.kept:
            self.store.discard(kept.id)
        for run in self.reservations:
            run.reservation.close()
        stats = self.store.stats()
        assert (stats.held_bytes, stats.held_episodes, stats.reserved_bytes, stats.open_fetches) == (
            0,
            0,
            0,
            0,
        )
        for mapped, data in self.mapped:
            assert mapped[:] == data, "broke: what was offered is never written again"
            mapped.close()
        self.clock.advance(spares.IDLE_SECONDS)
        self.store.expire()
        self.patch.undo()
        assert open_segments() == self.files
        table = self.store._holdings._table
        assert [len(table.episodes), len(table._branches), len(table._owned)] == [0, 0, 0]
        assert not list(Path(self.folder.name).iterdir())
        self.store.close()
        self.folder.cleanup()


ArrayBudgetMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestArrayBudget = ArrayBudgetMachine.TestCase
