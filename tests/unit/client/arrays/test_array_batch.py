"""Batches of jobs: who waits for what, and what becomes of jobs that nobody has begun."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from env_client import ArraysNotFoundError, FetchCancelledError, FetchDeadlineError
from env_client.training_arrays.batch import Batch
from env_client.training_arrays.bounds import CallBounds
from tests.helpers.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 20.0
GONE = ArraysNotFoundError("gone")


def jobs(*results: object) -> list[Callable[[CallBounds], Any]]:
    """Jobs that return these, or raise them."""

    def job(result: object) -> Callable[[CallBounds], Any]:
        def run(_bounds: CallBounds) -> object:
            if isinstance(result, BaseException):
                raise result
            return result

        return run

    return [job(result) for result in results]


def test_results_in_the_order_of_the_jobs() -> None:
    batch = Batch(jobs(1, 2, 3), CallBounds(None))
    assert not batch.ended.done()
    batch.work()
    assert batch.ended.done()
    assert batch.results() == [1, 2, 3]
    batch.work()  # A thread that comes too late finds nothing to do.
    assert Batch(jobs(), CallBounds(None)).ended.done()


def test_what_nobody_began_is_not_waited_for() -> None:
    batch = Batch(jobs(1, 2), CallBounds(None))
    batch.give_up()
    assert batch.ended.done()
    batch.work()
    with pytest.raises(FetchCancelledError, match="2 of 2 calls for arrays were given up before they began"):
        batch.results()


def test_a_job_that_was_begun_is_waited_for() -> None:
    began, go = threading.Event(), threading.Event()

    def slow(bounds: CallBounds) -> str:
        began.set()
        assert go.wait(SECONDS)
        assert bounds.is_cancelled
        return "done"

    batch = Batch([slow, *jobs(2)], CallBounds(None))
    thread = threading.Thread(target=batch.work)
    thread.start()
    assert began.wait(SECONDS)
    batch.give_up()
    assert not batch.ended.done()
    go.set()
    thread.join(SECONDS)
    assert batch.ended.done()
    with pytest.raises(FetchCancelledError, match="1 of 2"):
        batch.results()


def test_what_was_not_begun_in_time() -> None:
    clock = FakeClock()
    batch = Batch(jobs(1, 2), CallBounds(1.0, clock))
    clock.advance(1.0)
    batch.give_up()
    with pytest.raises(FetchDeadlineError, match=r"2 of 2 .* did not even begin"):
        batch.results()


def test_the_first_error_ends_the_rest() -> None:
    begun: list[str] = []
    batch = Batch([*jobs(1, GONE), lambda _: begun.append("another")], CallBounds(None))
    batch.work()
    assert batch.bounds.is_cancelled
    with pytest.raises(ArraysNotFoundError):
        batch.results()
    assert begun == []


def test_errors_as_results() -> None:
    batch = Batch(jobs(1, GONE, 3), CallBounds(None), collects=True)
    batch.work()
    assert batch.results() == [1, GONE, 3]
    batch = Batch(jobs(1, KeyError("a fault")), CallBounds(None), collects=True)
    batch.work()
    with pytest.raises(KeyError, match="a fault"):
        batch.results()
    batch = Batch(jobs(1, 2), CallBounds(None), collects=True)
    batch.give_up()
    assert [type(result) for result in batch.results()] == [FetchCancelledError] * 2
