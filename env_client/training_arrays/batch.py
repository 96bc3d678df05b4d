"""Jobs that one call of a client has threads do."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from env_client.errors import EnvError, FetchCancelledError, FetchDeadlineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from env_client.training_arrays.bounds import CallBounds

_T = TypeVar("_T")
Job: TypeAlias = "Callable[[CallBounds], _T]"
"""Work for one thread, within bounds."""

_MISSING: Final = object()


class Batch(Generic[_T]):
    """Jobs and what became of them. Thread-safe.

    Any number of threads `work` on it, and find nothing to do when it is over. Whoever waits for `ended`
    waits only for jobs that a thread works on: one that none has begun when it is given up is never begun.

    Args:
        jobs: in the order in which they are begun.
        bounds: of all together.
        collects: whether the `EnvError` of a job is its result and leaves the others alone; else the first
            error ends them all.

    Attributes:
        ended: done as soon as no thread works on it any more, nor will. Has no result; do not cancel it.
    """

    def __init__(self, jobs: Sequence[Job[_T]], bounds: CallBounds, *, collects: bool = False) -> None:
        self.bounds = bounds
        self.ended: Future[None] = Future()
        self._jobs = jobs
        self._collects = collects
        self._results: list[Any] = [_MISSING] * len(jobs)
        self._error: BaseException | None = None
        # Held for changes of these, never while a job is done.
        self._lock = threading.Lock()
        self._next = 0
        self._working = 0
        self._is_over = False
        self._has_ended = False
        if not jobs:
            self.give_up()

    def work(self) -> None:
        """Do jobs until there are none left."""
        while (index := self._take()) is not None:
            try:
                self._results[index] = self._jobs[index](self.bounds)
            except BaseException as error:
                self._failed(index, error)
            finally:
                self._put_back()

    def give_up(self) -> None:
        """Nobody wants it any more: it ends soon. Nothing happens to one that has ended."""
        self.bounds.cancel()
        with self._lock:
            self._is_over = True
        self._end_if_over()

    def results(self) -> list[Any]:
        """What the jobs made, in their order; where it collects, an `EnvError` for each that failed. Once.

        Raises:
            FetchDeadlineError: a job was not begun within the bounds.
            FetchCancelledError: a job was not begun as the batch was given up.
            BaseException: that of the first job that failed.
        """
        results, self._results = self._results, []  # Threads that come too late keep no arrays alive.
        if self._error is not None:
            raise self._error
        left = sum(result is _MISSING for result in results)
        if not left:
            return results
        error = self._not_begun(left, len(results))
        if not self._collects:
            raise error
        return [error if result is _MISSING else result for result in results]

    def _not_begun(self, left: int, total: int) -> EnvError:
        if self.bounds.seconds_left() == 0.0:
            return FetchDeadlineError(
                f"{left} of {total} calls for arrays did not even begin in the time that all had together: "
                "repeat them, with a larger timeout, or with more concurrency, as they had to wait"
            )
        return FetchCancelledError(f"{left} of {total} calls for arrays were given up before they began")

    def _take(self) -> int | None:
        with self._lock:
            if self._is_over or self._next == len(self._jobs):
                return None
            self._next += 1
            self._working += 1
            return self._next - 1

    def _put_back(self) -> None:
        with self._lock:
            self._working -= 1
        self._end_if_over()

    def _failed(self, index: int, error: BaseException) -> None:
        if self._collects and isinstance(error, EnvError):
            self._results[index] = error
            return
        with self._lock:
            # The first one is the cause: the others may fail because of it.
            self._error = self._error or error
            self._is_over = True
        self.bounds.cancel()

    def _end_if_over(self) -> None:
        with self._lock:
            is_over = self._is_over or self._next == len(self._jobs)
            if self._has_ended or self._working or not is_over:
                return
            self._has_ended = True
        self.ended.set_result(None)
