"""Keeps episodes' training arrays in this process, and gives them out by key until they are released."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from env_worker.arrays.budget import ArrayBudget
from env_worker.arrays.descriptors import room_for_segments
from env_worker.arrays.fetch import Fetch
from env_worker.arrays.holdings import ArrayHoldings
from env_worker.arrays.hole_log import HoleLog
from env_worker.arrays.keeping import keep_episode
from env_worker.arrays.limits import LimitChoices
from env_worker.arrays.reference import check_address
from env_worker.arrays.reservation import Reservation
from env_worker.arrays.segment import check_folder
from env_worker.arrays.selection import select
from env_worker.arrays.spares import Spares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from env_worker.arrays.limits import ArrayLimits, Home
    from env_worker.arrays.stats import ArrayStats
    from env_worker.arrays.table import KeptTrace
    from env_worker.domain import Episode

__all__ = ["ArrayStore", "Fetch", "Released", "Reservation"]

logger = logging.getLogger(__name__)

_RELEASE_BATCH: Final = 1024
_NO_CHOICES: Final = LimitChoices()


class Released(NamedTuple):
    """What a release has freed."""

    released: int
    """Branches that were released now."""
    not_found: int
    """Keys that were not there."""
    bytes: int
    """Bytes of the segments that are gone now; one that is fetched, or has other branches, goes later."""


class ArrayStore:
    """The training arrays of this process. Thread-safe, and nobody waits in it for bytes of somebody else.

    What is kept is frozen, and freed only by release, discard, lease or `close`. A fetch that is under way
    holds it until it ends; so long the budget counts it.

    Args:
        limits: those that hold, whatever the worker's are. None: `choices`, and for what they leave open
            those of the worker, which `attach` brings.
        choices: limits that were chosen one by one.
        clock: monotonic seconds.

    ValueError if the spill folder cannot be used.
    """

    def __init__(
        self,
        limits: ArrayLimits | None = None,
        *,
        choices: LimitChoices = _NO_CHOICES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._choices: Final = choices
        self._holdings: Final = ArrayHoldings(clock)
        self._spares: Final = Spares(self._holdings.free_memory, clock)
        self._holes: Final = HoleLog()
        self._attaching: Final = threading.Lock()
        self._home: Home | None = None
        self._limits: ArrayLimits | None = None
        if limits is not None:
            self._allow(limits)

    @property
    def home(self) -> Home | None:
        """The worker that it belongs to; None before `attach`."""
        return self._home

    @property
    def limits(self) -> ArrayLimits | None:
        """Those that hold; None before `attach`, unless they were given."""
        return self._limits

    @property
    def held_arrays(self) -> int:
        """Episodes that are being kept or of which something is held."""
        return self._holdings.episodes

    @property
    def held_array_bytes(self) -> int:
        """Bytes that are held, in memory and spilled, headers and rounding to whole pages included."""
        return self._holdings.bytes

    def attach(self, home: Home, limits: ArrayLimits) -> None:
        """Say which worker it belongs to, and the limits that were not given. Again: changes nothing.

        ValueError if it belongs to another worker, if references have no room for the worker's address, or if
        the spill folder cannot be used.
        """
        with self._attaching:
            if self._home == home:
                return
            if self._home is not None:
                raise ValueError(
                    f"these training arrays belong to worker {self._home.instance[:8]} at "
                    f"{self._home.address}, and cannot belong to worker {home.instance[:8]} at "
                    f"{home.address} too; make an ArrayKeeper (or ArrayStore) for each worker"
                )
            if len(home.instance) != 32 or not home.instance.isascii():
                raise ValueError(f"worker instance {home.instance[:64]!r} is not of 32 ASCII characters")
            check_address(home.address)
            if self._limits is None:
                self._allow(self._choices.over(limits))
            self._home = home
        logger.info("worker=%.8s keeps training arrays: %s", home.instance, self._limits)

    def keep(self, episode: Episode) -> None:
        """Keep the arrays of every trainable trace, and write the references to its branches into
        `trace.info["training_arrays"]`. No array of a node is referenced afterwards.

        If it raises, nothing is held: ArrayBudgetExceededError; ArraysIncompleteError (strict); OSError where
        the system has no room; ArrayKeepError if the store was closed or the episode discarded meanwhile;
        ValueError if the episode is held already; RuntimeError before `attach`.
        """
        try:
            if self._home is None or self._limits is None:
                raise RuntimeError("these training arrays belong to no worker yet; call attach before keep")
            kept = keep_episode(episode, self._holdings, self._spares, self._home, self._limits)
        except BaseException:
            self._holdings.count_failure()
            raise
        self._holes.tell(episode)
        logger.debug("episode=%.8s kept: %d traces, %d branches", kept.id, len(kept.traces), len(kept.keys))

    def reserve(self) -> Reservation:
        """Room for one more run, until it is closed. ArrayBudgetError if there is none.

        Without limits, before `attach`, it stands for nothing.
        """
        room = self._holdings.reserve()
        return Reservation(lambda: None if room is None else self._holdings.unreserve(room))

    def spilled(self, key: str) -> bool:
        """Whether to read, or to close, that branch may wait for a disk. ArraysNotFoundError."""
        return self._holdings.find(key).trace.segment.in_file

    def open(self, key: str, fields: Sequence[str], start: int, end: int | None) -> Fetch:
        """A fetch of a branch's tokens from `start` to before `end` (None: to their end), of these fields, or
        of all that are complete where none are named. Close it. Reads what the checksum needs.

        ArraysNotFoundError, UnknownFieldError, TokenRangeError, FieldIncompleteError (all of them
        ArrayAccessError); OSError if a disk fails.
        """
        trace, layout = self._holdings.find(key)
        kept = () if self._limits is None else self._limits.fields
        selection = select(layout, kept, fields, start, end)
        self._holdings.begin_fetch(key)
        try:
            cut = layout.cut(*selection, trace.segment.read)
        except BaseException:
            self._end_fetch(trace)
            raise
        return Fetch(
            trace.segment, cut, selection.start, selection.end,
            on_end=partial(self._end_fetch, trace), count=self._holdings.count,
        )  # fmt: skip

    def release(self, keys: Iterable[str]) -> Released:
        """Free these branches. Idempotent: a key that is not there is counted, and no error."""
        released = not_found = size = 0
        rest = iter(keys)
        while batch := list(islice(rest, _RELEASE_BATCH)):  # others get their turn between a million keys
            branches, traces = self._holdings.release(batch)
            released += branches
            not_found += len(batch) - branches
            size += _let_go(traces)
        return Released(released, not_found, size)

    def release_owner(self, owner: str) -> Released:
        """Free everything whose run named this owner. ValueError if it is empty, as of all who named none."""
        if not owner:
            raise ValueError("owner is empty; name the owner that the runs were started with")
        released = self.release(self._holdings.owned(owner))._replace(not_found=0)
        logger.info("owner=%.64r released %d branches, %d bytes", owner, released.released, released.bytes)
        return released

    def discard(self, episode_id: str) -> None:
        """Free what was kept of an episode that was not delivered. Idempotent."""
        branches, traces = self._holdings.discard(episode_id)
        size = _let_go(traces)
        logger.debug("episode=%.8s discarded: %d branches, %d bytes", episode_id, branches, size)

    def expire(self) -> int:
        """Free the episodes that nobody has fetched within the lease; how many. Without a lease: none. Also
        frees files that were spare for some seconds, so it is to be called about once a second."""
        self._spares.expire()
        if self._limits is None or not self._limits.lease_seconds:
            return 0
        expired = self._holdings.expire(self._limits.lease_seconds)
        for episode, seconds, removed in expired:
            size = _let_go(removed.traces)
            logger.warning(
                "episode=%.8s owner=%.64r expired: nobody has fetched its training arrays (%d bytes) for "
                "%.0f s, the lease is %g s",
                episode.id, episode.owner, size, seconds, self._limits.lease_seconds,
            )  # fmt: skip
        return len(expired)

    def close(self) -> None:
        """Free everything and keep nothing more. Fetches that are under way end as ever. Again: changes
        nothing."""
        _let_go(self._holdings.close())
        self._spares.close()

    def stats(self) -> ArrayStats:
        """What it has done and what it holds."""
        return self._holdings.stats()

    def _allow(self, limits: ArrayLimits) -> None:
        if limits.spill_dir is not None:
            check_folder(limits.spill_dir)
        budget = ArrayBudget(limits.memory_bytes, limits.spill_capacity, room_for_segments())
        self._holdings.allow(budget)
        self._limits = limits

    def _end_fetch(self, trace: KeptTrace) -> None:
        self._holdings.end_fetch(trace)
        trace.segment.drop()


def _let_go(traces: Iterable[KeptTrace]) -> int:
    """The bytes of those that are gone with that."""
    return sum(trace.size for trace in traces if trace.segment.drop())
