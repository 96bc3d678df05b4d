"""What a store holds: its table, its budget and its counters under one lock."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, NamedTuple

from env_worker.arrays.budget import ArrayBudget
from env_worker.arrays.errors import (
    ArrayBudgetError,
    ArrayBudgetExceededError,
    ArrayKeepError,
    ArraysNotFoundError,
)
from env_worker.arrays.stats import ArrayCounters, ArrayStats
from env_worker.arrays.table import ArrayTable, KeptTrace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from env_worker.arrays.budget import Room
    from env_worker.arrays.table import KeptBranch, KeptEpisode


class Removed(NamedTuple):
    """Branches that are found no more."""

    branches: int
    traces: list[KeptTrace]
    """Those that no branch needs any more: let go of their segments."""


class ArrayHoldings:
    """Each method is one atomic step. The lock is never held while bytes are copied or read, nor while a
    segment is closed: so what a step removes is let go of by the caller, and `gone` gives its room back.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._table: Final = ArrayTable()
        self._counters: Final = ArrayCounters()
        self._budget = ArrayBudget(0, 0, 0)
        self._allowed = False
        self._open_fetches = 0
        self._closed = False

    @property
    def episodes(self) -> int:
        """Episodes that are being kept or of which something is held."""
        with self._lock:
            return len(self._table.episodes)

    @property
    def bytes(self) -> int:
        """Bytes that are held."""
        with self._lock:
            return self._budget.held()

    def free_memory(self) -> Room:
        """Bytes in memory, and segments, that are not held."""
        with self._lock:
            return self._budget.free_memory

    def allow(self, budget: ArrayBudget) -> None:
        """Set the budget, before anything is kept."""
        with self._lock:
            self._budget = budget
            self._allowed = True

    def reserve(self) -> Room | None:
        """Reserve room for a run; None where there is no budget yet. ArrayBudgetError if there is no room."""
        with self._lock:
            if not self._allowed:
                return None
            try:
                return self._budget.reserve()
            except ArrayBudgetError:
                self._counters.refused_reservations += 1
                raise

    def unreserve(self, room: Room) -> None:
        """Give a reservation back."""
        with self._lock:
            self._budget.unreserve(room)

    def begin(self, episode_id: str, owner: str, sizes: Sequence[int]) -> KeptEpisode:
        """A keep begins: take room for traces of these sizes in bytes, or for none of them; what did not fit
        counts for the next reservations.

        ArrayBudgetExceededError; ValueError if the episode is held already; ArrayKeepError after `close`.
        """
        with self._lock:
            if self._closed:
                raise ArrayKeepError(
                    "training arrays cannot be kept: the store is closed, since its worker ends"
                )
            episode = self._table.begin(episode_id, owner, self._clock())
            try:
                for size in sizes:
                    episode.traces.append(KeptTrace(episode, self._budget.place(size), size))
            except BaseException as error:
                for trace in episode.traces:
                    self._budget.free(trace.medium, trace.size)
                if isinstance(error, ArrayBudgetExceededError):
                    self._budget.note_failed(sizes)
                self._table.failed(episode)
                raise
            return episode

    def kept(self, episode: KeptEpisode, branches: Mapping[str, KeptBranch], holes: Iterable[str]) -> None:
        """The keep has succeeded: from now on its branches are found by their keys.

        `holes` are the fields that a trace has not got complete, one by one for each trace. ArrayKeepError if
        the episode was discarded or the store closed meanwhile.
        """
        with self._lock:
            if self._closed or episode.discarded:
                raise ArrayKeepError("the training arrays were discarded before they were kept")
            size = sum(trace.size for trace in episode.traces)
            spilled = sum(trace.size for trace in episode.traces if trace.medium == "spill")
            self._budget.note(size, len(episode.traces))
            self._table.kept(episode, branches)
            episode.renewed_at = self._clock()  # however long the keep took, the lease begins with its end
            counters = self._counters
            counters.kept_episodes += 1
            counters.kept_bytes += size
            counters.spilled_episodes += bool(spilled)
            counters.spilled_bytes += spilled
            for field in holes:
                counters.incomplete_fields[field] = counters.incomplete_fields.get(field, 0) + 1

    def failed(self, episode: KeptEpisode) -> None:
        """The keep has failed, and gave back its room."""
        with self._lock:
            self._table.failed(episode)

    def count_failure(self) -> None:
        """Count a keep that has failed, begun or not."""
        with self._lock:
            self._counters.failed_keeps += 1

    def gone(self, trace: KeptTrace) -> None:
        """Give back the room of a trace whose segment is gone, or was never made."""
        with self._lock:
            self._budget.free(trace.medium, trace.size)
            self._table.gone(trace)

    def find(self, key: str) -> KeptBranch:
        """The branch of that key. ArraysNotFoundError."""
        with self._lock:
            return self._find(key)

    def begin_fetch(self, key: str) -> None:
        """Hold the segment of that key's branch for a fetch. ArraysNotFoundError."""
        with self._lock:
            branch = self._find(key)
            branch.trace.segment.hold()
            branch.trace.episode.open_fetches += 1
            branch.trace.episode.renewed_at = self._clock()
            self._open_fetches += 1
            self._counters.fetches += 1

    def end_fetch(self, trace: KeptTrace) -> None:
        """A fetch has ended. Let go of its segment afterwards."""
        with self._lock:
            trace.episode.open_fetches -= 1
            trace.episode.renewed_at = self._clock()
            self._open_fetches -= 1

    def count(self, fetched_bytes: int, mapped_bytes: int) -> None:
        """Count bytes that were sent, and bytes that were offered to be mapped."""
        with self._lock:
            self._counters.fetched_bytes += fetched_bytes
            self._counters.mapped_bytes += mapped_bytes

    def release(self, keys: Iterable[str]) -> Removed:
        """Remove the branches of these keys, as far as they are there."""
        with self._lock:
            released = [trace for key in keys if (trace := self._release(key)) is not None]
            return Removed(len(released), [trace for trace in dict.fromkeys(released) if not trace.keys])

    def owned(self, owner: str) -> list[str]:
        """The keys of all branches of an owner."""
        with self._lock:
            return self._table.owned(owner)

    def discard(self, episode_id: str) -> Removed:
        """Remove an episode; one that is being kept is given up."""
        with self._lock:
            if (episode := self._table.episodes.get(episode_id)) is None:
                return Removed(0, [])
            removed = self._remove(episode)
            self._counters.discarded_episodes += bool(removed.branches)
            return removed

    def expire(self, lease_seconds: float) -> list[tuple[KeptEpisode, float, Removed]]:
        """Remove the episodes that were neither kept nor fetched for so long; each with how long it was."""
        with self._lock:
            now = self._clock()
            overdue = self._table.overdue(now - lease_seconds)
            self._counters.expired_episodes += len(overdue)
            return [(episode, now - episode.renewed_at, self._remove(episode)) for episode in overdue]

    def close(self) -> list[KeptTrace]:
        """Remove everything, and keep nothing more."""
        with self._lock:
            self._closed = True
            episodes = list(self._table.episodes.values())
            return [trace for episode in episodes for trace in self._remove(episode).traces]

    def stats(self) -> ArrayStats:
        """What was done, and what is held."""
        with self._lock:
            oldest = next(iter(self._table.episodes.values()), None)
            budget = self._budget
            return ArrayStats(
                **asdict(self._counters),
                held_episodes=len(self._table.episodes),
                held_memory_bytes=budget.held("memory"),
                held_spill_bytes=budget.held("spill"),
                limit_memory_bytes=budget.limits["memory"],
                limit_spill_bytes=budget.limits["spill"],
                reservations=budget.reservations,
                reserved_bytes=budget.reserved,
                open_fetches=self._open_fetches,
                oldest_age_seconds=0.0 if oldest is None else self._clock() - oldest.kept_at,
            )

    def _find(self, key: str) -> KeptBranch:
        if (branch := self._table.find(key)) is None:
            raise ArraysNotFoundError(key)
        return branch

    def _release(self, key: str) -> KeptTrace | None:
        trace = self._table.release(key)
        if trace is not None and not trace.episode.keys:
            self._counters.released_episodes += 1
        return trace

    def _remove(self, episode: KeptEpisode) -> Removed:
        branches = len(episode.keys)
        return Removed(branches, self._table.remove(episode))
