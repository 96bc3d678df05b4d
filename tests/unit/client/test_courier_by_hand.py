"""CancelCourier, answered by hand: when it repeats a cancel, and when it lets it go."""

from __future__ import annotations

import math
import queue
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from envtrio.v1.env_service_pb2 import CancelOutcome, CancelResponse, DescribeResponse
from envtrio.v1.errors_pb2 import ErrorReason

from env_client.courier import CancelCourier

A = "a" * 32
ABORTED = CancelOutcome.CANCEL_OUTCOME_ABORTED
DISCARDED = CancelOutcome.CANCEL_OUTCOME_DISCARDED
TOO_LATE = CancelOutcome.CANCEL_OUTCOME_TOO_LATE
REMEMBERED = CancelOutcome.CANCEL_OUTCOME_REMEMBERED
EVENT_SECONDS = 20


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class HandChannel:
    """A channel whose calls the test answers by hand, in the order that it likes."""

    def __init__(self) -> None:
        self._calls: dict[str, queue.SimpleQueue[tuple[Any, Future[Any]]]] = {
            "Cancel": queue.SimpleQueue(),
            "Describe": queue.SimpleQueue(),
        }

    def take(self, method: str) -> tuple[Any, Future[Any]]:
        """The oldest call that was not taken, and the future of its answer."""
        return self._calls[method].get(timeout=EVENT_SECONDS)

    def unary_unary(self, method: str, *_args: Any, **_options: Any) -> Any:
        calls = self._calls[method.rpartition("/")[2]]

        def future(request: Any, timeout: float) -> Future[Any]:
            assert timeout > 0
            answer: Future[Any] = Future()
            calls.put((request, answer))
            return answer

        return SimpleNamespace(future=future)

    def unary_stream(self, *_args: Any, **_options: Any) -> None:
        """Not used."""

    stream_stream = unary_stream

    def close(self) -> None:
        """Nothing to close."""


def test_the_window_is_what_the_server_describes() -> None:
    channel: Any = HandChannel()
    courier = CancelCourier(lambda: channel, backoff_seconds=(1000.0,))
    courier.send(A, "")
    _, described = channel.take("Describe")
    described.set_result(DescribeResponse(late_cancel_seconds=0.0))
    # With a window of 0 it is over at once; with the default it would now wait for 1000 s, still carried.
    request, answer = channel.take("Cancel")
    assert request.request_id == A
    answer.set_result(CancelResponse(outcome=REMEMBERED))
    courier.send(A, "again, for it was let go")
    request, answer = channel.take("Cancel")
    assert request.cause == "again, for it was let go"
    answer.set_result(CancelResponse(outcome=ABORTED))
    courier.close(5)


@pytest.mark.parametrize("outcome", [TOO_LATE, ABORTED])
def test_of_a_lost_worker_it_is_repeated_until_the_window_is_over(outcome: CancelOutcome) -> None:
    # The worker may come back within it, and discard what it kept; to a restarted broker too.
    channel, clock = HandChannel(), Clock()
    courier = CancelCourier(
        lambda: cast("Any", channel),
        backoff_seconds=(0.0,),
        away_attempts=math.inf,
        window_seconds=10.0,
        clock=clock,
    )
    lost = CancelResponse(outcome=outcome, reason=ErrorReason.ERROR_REASON_WORKER_LOST)
    courier.send(A, "")
    for now in (0.0, 9.9, 10.0):
        _, answer = channel.take("Cancel")
        clock.now = now
        answer.set_result(lost)
    courier.send(A, "again, for it was let go")
    request, answer = channel.take("Cancel")
    assert request.cause == "again, for it was let go"
    answer.set_result(lost)
    _, answer = channel.take("Cancel")
    answer.set_result(CancelResponse(outcome=DISCARDED))
    courier.send(A, "again, for it is settled")
    request, answer = channel.take("Cancel")
    assert request.cause == "again, for it is settled"
    answer.set_result(CancelResponse(outcome=TOO_LATE))  # Of a worker that is there: settled.
    courier.send(A, "once more")
    request, answer = channel.take("Cancel")
    assert request.cause == "once more"
    answer.set_result(CancelResponse(outcome=TOO_LATE))
    courier.close(5)


def test_a_call_that_was_cancelled_is_repeated() -> None:
    channel: Any = HandChannel()
    courier = CancelCourier(lambda: channel, backoff_seconds=(0.0,), window_seconds=60.0)
    courier.send(A, "")
    _, answer = channel.take("Cancel")
    answer.cancel()
    _, answer = channel.take("Cancel")
    answer.set_result(CancelResponse(outcome=ABORTED))
    courier.close(5)


def test_a_server_that_does_not_describe_itself_leaves_the_default() -> None:
    channel: Any = HandChannel()
    courier = CancelCourier(lambda: channel, backoff_seconds=(0.0,))
    courier.send(A, "")
    channel.take("Describe")[1].cancel()
    channel.take("Cancel")[1].set_result(CancelResponse(outcome=REMEMBERED))
    channel.take("Cancel")[1].set_result(CancelResponse(outcome=ABORTED))
    courier.close(5)
