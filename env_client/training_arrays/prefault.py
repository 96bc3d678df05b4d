"""Threads that enter the pages of large mappings ahead of whoever reads them. Right without, only slower."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from env_client.training_arrays.pages import Pages, Region

MIN_BYTES: Final = 16 * 1024 * 1024
"""From so much on it is of use: a reader that enters the pages by reading is slowed down threefold."""
_CHUNK_BYTES: Final = 4 * 1024 * 1024
_MAX_THREADS: Final = 2


class _Job(NamedTuple):
    """What is left of one mapping."""

    pages: weakref.ref[Pages]
    begins: Iterator[int]


class Prefault:
    """The threads, few for all mappings together: more would only keep others out of the address space.

    They are there while there is work. They keep no mapping alive, and no process.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything, as in a forked child, where the threads are not."""
        self._lock = threading.Lock()
        self._jobs: deque[_Job] = deque()
        self._running = 0

    def add(self, pages: Pages) -> None:
        """Enter these pages, from the first to the last, after those that were added before."""
        job = _Job(weakref.ref(pages), iter(range(0, pages.region.length, _CHUNK_BYTES)))
        with self._lock:
            self._jobs.append(job)
            while self._running < min(_MAX_THREADS, os.cpu_count() or 1):
                try:
                    threading.Thread(target=self._work, name="envtrio-prefault", daemon=True).start()
                except RuntimeError:  # No thread can be started any more.
                    break
                self._running += 1
            if not self._running:
                self._jobs.clear()

    def _work(self) -> None:
        while self._enter_next():
            pass

    def _enter_next(self) -> bool:
        chunk = self._next()
        if chunk is not None:
            region, begin = chunk
            region.enter(begin, _CHUNK_BYTES)
        return chunk is not None

    def _next(self) -> tuple[Region, int] | None:
        with self._lock:
            while self._jobs:
                job = self._jobs[0]
                pages, begin = job.pages(), next(job.begins, None)
                if pages is not None and begin is not None:
                    return pages.region, begin  # Not the pages: a thread would keep them for the other one.
                self._jobs.popleft()
            self._running -= 1
            return None


PREFAULT: Final = Prefault()
"""That of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PREFAULT.reset)
