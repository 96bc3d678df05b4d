"""What a run of chaos came to: waits until all is quiet, then asks the oracle."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.helpers import oracle
from tests.helpers.history import DiscardRaised, DiscardReturned, Ended, Record
from tests.helpers.history_pipe import owes_discard
from tests.helpers.pool_watch import counters_add_up, watcher

if TYPE_CHECKING:
    from tests.helpers.history import History
    from tests.helpers.history_pipe import HistoryPipe

EMPTY_SECONDS: Final = 30.0
"""A window waits for 10 s after its worker has registered."""
QUIET_SECONDS: Final = 20.0
"""Within which what is due for discard must have been discarded, once every client has left."""


@dataclass
class Totals:
    """What happened, counted."""

    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, history: History, faults: Counter[str], seconds: float) -> Totals:
        """Those of a history."""
        totals = cls(seconds, faults)
        for run in history.runs():
            for end in history.of(run, Ended):
                totals.ends[f"{end.code} {end.reason}".strip()] += 1
        for record in history:
            totals.events[type(record).__name__] += 1
        return totals

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"{self.seconds:.0f} s, {sum(self.faults.values())} faults: {_listed(self.faults)}",
            f"{sum(self.ends.values())} runs: {_listed(self.ends)}",
            f"records: {_listed(self.events)}",
        ]


async def quiet(pipe: HistoryPipe) -> None:
    """Wait for the discards that are due. What does not come is left to the oracle."""
    history, until = pipe.history, time.monotonic() + QUIET_SECONDS
    with contextlib.suppress(TimeoutError):
        for run in history.runs():
            if owes_discard(history, run):
                left = max(0.01, until - time.monotonic())
                await pipe.seen(run, DiscardReturned, DiscardRaised, timeout=left)


async def emptied(address: str) -> None:
    """Wait until the tables of the broker and its workers are empty. GuaranteeBroken if they do not empty, or
    its counters do not add up."""
    async with watcher(address) as pool:
        watch = pool.watch()
        view = await watch.next()
        try:
            async with asyncio.timeout(EMPTY_SECONDS):
                while view.queued_runs or any(w.running or w.open_windows for w in view.workers):
                    view = await watch.next()
        except TimeoutError:
            raise oracle.GuaranteeBroken(
                f"broke NothingLeftBehind: {EMPTY_SECONDS:g} s after the last run the pool is {view}"
            ) from None
    counters_add_up(view)


def judge(history: History) -> None:
    """Every promise about runs. GuaranteeBroken, with the run's records, for the first that is broken."""
    try:
        oracle.contract_holds(history)
    except oracle.GuaranteeBroken as broken:
        named = re.search(r"run ([0-9a-f]{8})", str(broken))
        for run in history.runs() if named else ():
            if run.startswith(named[1] if named else "-"):
                for record in [*history.of(run, Record), *history.of("", Record)]:
                    broken.add_note(str(record))
        raise


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"
