"""When a call for arrays is tried again, and when it is given up; with a clock that stands still."""

from __future__ import annotations

import pytest

from env_client import (
    ArraysLostError,
    FetchCancelledError,
    FetchDeadlineError,
    QueueFullError,
    ResourceExhaustedError,
    UnavailableError,
)
from env_client.training_arrays.bounds import CallBounds
from env_client.training_arrays.progress import Progress
from env_client.training_arrays.status import Retries
from tests.helpers.clock import FakeClock

CUT_OFF = UnavailableError("cut off")
FULL = QueueFullError("full", retry_after=3.0)


class Call:
    """A gRPC call that counts its cancels."""

    cancels = 0

    def cancel(self) -> None:
        self.cancels += 1


def test_a_deadline() -> None:
    clock = FakeClock()
    bounds = CallBounds(2.0, clock)
    bounds.check("x")
    clock.advance(1.5)
    assert bounds.seconds_left() == 0.5
    clock.advance(1.0)
    assert bounds.seconds_left() == 0.0
    with pytest.raises(FetchDeadlineError, match=r"^x: .* its 2 s"):
        bounds.check("x")
    bounds.wait(60)  # Not a moment.
    assert CallBounds(None, clock).seconds_left() is None


def test_a_cancel_reaches_the_call_of_now_and_those_to_come() -> None:
    bounds = CallBounds(None)
    first, second = Call(), Call()
    with bounds.calling(first):
        assert first.cancels == 0
    assert first.cancels == 1  # A call that was left ends.
    with bounds.calling(second):
        bounds.cancel()
        assert second.cancels == 1
    with bounds.calling(first):
        assert first.cancels == 2
    bounds.wait(60)
    with pytest.raises(FetchCancelledError, match=r"^x: "):
        bounds.check("x")


def test_delays_grow_until_the_worker_counts_as_lost() -> None:
    clock = FakeClock()
    retries = Retries(2.0, clock=clock)
    delays = []
    while (delay := retries.delay(CUT_OFF)) is not None:
        delays.append(delay)
        clock.advance(delay)
    assert delays[:5] == [0.05, 0.1, 0.2, 0.4, 0.8]
    assert sum(delays) == pytest.approx(2.0)


def test_the_limit_counts_anew_from_where_a_call_came_further() -> None:
    clock = FakeClock()
    retries = Retries(2.0, clock=clock)
    for reached in (0, 10, 11):
        assert retries.delay(CUT_OFF, reached) == 0.05
        clock.advance(1.9)
    assert retries.delay(CUT_OFF, 5) is not None
    clock.advance(0.2)
    assert retries.delay(CUT_OFF, 11) is None


def test_a_full_worker_is_asked_again_when_it_says() -> None:
    clock = FakeClock()
    hasty, patient = Retries(2.0, clock=clock), Retries(2.0, waits_in_queue=True, clock=clock)
    assert hasty.delay(FULL) == patient.delay(FULL) == 3.0
    clock.advance(3.0)
    assert hasty.delay(FULL) is None
    assert patient.delay(QueueFullError("full")) == 1.0


@pytest.mark.parametrize("error", [ArraysLostError("lost"), ResourceExhaustedError("other")])
def test_nothing_else_is_tried_again(error: ArraysLostError) -> None:
    assert Retries(60).delay(error) is None


def test_progress_of_two_that_were_thought_smaller() -> None:
    clock, told = FakeClock(), list[tuple[int, int]]()
    progress = Progress(lambda *now: told.append(now), clock)
    first, second = progress.part(10), progress.part(10)
    first.reached(4, 12)
    assert told == [(4, 22)]
    clock.advance(0.04)
    first.reached(5, 12)
    assert told == [(4, 22)]
    clock.advance(0.02)
    first.reached(6, 12)
    clock.advance(0.06)
    first.reached(2, 12)  # It began again.
    assert told == [(4, 22), (6, 22)]
    second.reached(10, 10)
    first.reached(12, 12)
    assert told == [(4, 22), (6, 22), (16, 22), (22, 22)]
