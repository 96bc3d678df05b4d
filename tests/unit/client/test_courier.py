"""CancelCourier: cancels leave, and are repeated as long as that may help."""

from __future__ import annotations

import logging
import threading
from typing import Any

import grpc
import pytest
from envtrio.v1.env_service_pb2 import CancelOutcome

from env_client import courier as courier_module
from env_client.channels import open_sync_channel
from env_client.courier import CancelCourier
from tests.helpers.scripted_end import End
from tests.helpers.scripted_service import ScriptedService, Wait

A, B = "a" * 32, "b" * 32
ABORTED = CancelOutcome.CANCEL_OUTCOME_ABORTED
REMEMBERED = CancelOutcome.CANCEL_OUTCOME_REMEMBERED
GONE = End(grpc.StatusCode.UNAVAILABLE)
EVENT_SECONDS = 20


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def courier_to(service: ScriptedService, **arguments: Any) -> CancelCourier:
    arguments.setdefault("window_seconds", 60.0)
    return CancelCourier(
        lambda: open_sync_channel(service.address, None), backoff_seconds=(0.0,), **arguments
    )


def test_a_cancel_leaves_with_its_cause(service: ScriptedService) -> None:
    courier = courier_to(service)
    courier.send(A, "ä" * 200)
    courier.close(5)
    (cancel,) = service.cancels
    assert (cancel.request_id, cancel.protocol_generation) == (A, 1)
    assert cancel.cause == "ä" * 128  # At most 256 bytes, and no half of a character.
    assert service.describes == 0


@pytest.mark.parametrize(
    "obstacle",
    [
        GONE,
        End(grpc.StatusCode.RESOURCE_EXHAUSTED, "TABLE_FULL"),
        End(grpc.StatusCode.DEADLINE_EXCEEDED),
        End(grpc.StatusCode.CANCELLED),
    ],
)
def test_repeats_until_it_is_answered(service: ScriptedService, obstacle: End) -> None:
    service.on_cancel(obstacle, obstacle, ABORTED)
    courier = courier_to(service)
    courier.send(A, "")
    courier.close(5)
    assert service.cancelled_ids() == [A] * 3


def test_repeats_what_is_remembered_until_the_window_is_over(service: ScriptedService) -> None:
    clock, over = Clock(), threading.Event()
    service.on_cancel(REMEMBERED, REMEMBERED, Wait(over), REMEMBERED)
    courier = courier_to(service, window_seconds=10.0, clock=clock)
    courier.send(A, "")
    service.wait_for_cancels(3)
    clock.now = 10.0
    over.set()
    courier.close(5)
    assert service.cancelled_ids() == [A] * 3


def test_closing_does_not_wait_for_what_is_remembered(service: ScriptedService) -> None:
    service.on_cancel(REMEMBERED)
    courier = CancelCourier(
        lambda: open_sync_channel(service.address, None), window_seconds=60.0, backoff_seconds=(1000.0,)
    )
    courier.send(A, "")
    courier.close(5)
    assert service.cancelled_ids() == [A]


def test_a_refusal_is_an_answer(service: ScriptedService, caplog: pytest.LogCaptureFixture) -> None:
    service.on_cancel(End(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST_ID"))
    courier = courier_to(service)
    courier.send("foreign", "")
    courier.close(5)
    assert service.cancelled_ids() == ["foreign"]
    assert "run=foreign: its cancel was refused" in caplog.text


def test_one_run_is_carried_once(service: ScriptedService) -> None:
    answer = threading.Event()
    service.on_cancel(Wait(answer), ABORTED)
    courier = courier_to(service)
    courier.send(A, "first")
    courier.send(A, "second")
    courier.send(B, "another run does not wait for it")
    service.wait_for_cancels(2)
    answer.set()
    courier.close(5)
    assert sorted(service.cancelled_ids()) == [A, B]


def test_beyond_its_capacity_the_oldest_goes(
    service: ScriptedService, caplog: pytest.LogCaptureFixture
) -> None:
    answer = threading.Event()
    service.on_cancel(Wait(answer), GONE)
    courier = courier_to(service, capacity=1)
    courier.send(A, "")
    service.wait_for_cancels(1)
    courier.send(B, "")
    service.wait_for_cancels(2)
    answer.set()
    courier.close(5)
    assert service.cancelled_ids() == [A, B]  # The first was UNAVAILABLE, and is not repeated any more.
    assert "run=aaaaaaaa: its cancel is repeated no more" in caplog.text
    assert A not in caplog.text


def test_closing_is_bounded(service: ScriptedService, caplog: pytest.LogCaptureFixture) -> None:
    answer = threading.Event()
    service.on_cancel(Wait(answer), ABORTED)
    courier = courier_to(service)
    courier.send(A, "")
    service.wait_for_cancels(1)
    courier.close(0.05)
    assert "run=aaaaaaaa: its cancel was not answered in time" in caplog.text
    answer.set()
    courier.close(5)  # Idempotent.


def test_after_closing_nothing_leaves(service: ScriptedService, caplog: pytest.LogCaptureFixture) -> None:
    courier = courier_to(service)
    courier.close(5)
    courier.send(A, "")
    assert "run=aaaaaaaa: not cancelled, the client is closed" in caplog.text
    assert service.cancels == []


def test_the_channel_is_opened_at_the_first_cancel(service: ScriptedService) -> None:
    opened: list[str] = []

    def open_channel() -> grpc.Channel:
        opened.append(threading.current_thread().name)
        return open_sync_channel(service.address, None)

    courier = CancelCourier(open_channel)
    assert opened == []
    for request_id in (A, B):
        courier.send(request_id, "")
    service.wait_for_describes(1)  # it is asked beside the first cancel, and given up at the end
    courier.close(5)
    assert opened == ["envtrio-cancels"]
    assert service.describes == 1


def test_many_senders_share_one_thread(service: ScriptedService) -> None:
    opened: list[int] = []

    def open_channel() -> grpc.Channel:
        opened.append(1)
        return open_sync_channel(service.address, None)

    courier = CancelCourier(open_channel, window_seconds=60.0)
    together = threading.Barrier(8)

    def send(number: int) -> None:
        together.wait(EVENT_SECONDS)
        courier.send(f"{number:032x}", "")

    senders = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(EVENT_SECONDS)
    courier.close(5)
    assert len(set(service.cancelled_ids())) == 8
    assert opened == [1]


def test_where_no_thread_starts_any_more_it_says_so(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    courier = courier_to(service)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    courier.send(A, "")
    courier.close(1)
    assert "a cancel could not leave" in caplog.text


def test_a_server_that_is_back_is_told_within_a_second() -> None:
    assert max(courier_module._BACKOFF_SECONDS) <= 1.0


@pytest.fixture(autouse=True)
def debug_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="env_client.courier")
