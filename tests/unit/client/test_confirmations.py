"""Confirmations: pending, batched, in flight, answered, requeued, withdrawn, expired."""

from __future__ import annotations

import pytest

from env_client.confirmations import MAX_BATCH, Confirmations, Verdict, pause_seconds

WINDOW = 60.0
A, B, C = "a" * 32, "b" * 32, "c" * 32


@pytest.fixture
def table() -> Confirmations:
    return Confirmations(WINDOW)


def test_what_came_together_leaves_together(table: Confirmations) -> None:
    assert table.take_batch(0.0) == []
    for request_id in (A, B):
        assert table.add(request_id, 0.0)
    assert (len(table), table.in_flight) == (2, 0)
    assert table.take_batch(0.0) == [A, B]
    assert (len(table), table.in_flight) == (2, 2)
    assert table.take_batch(0.0) == []


def test_it_says_whether_a_frame_would_have_any(table: Confirmations) -> None:
    assert not table.has_ready(0.0)
    table.add(A, 0.0)
    assert table.has_ready(0.0)
    table.take_batch(0.0)
    assert not table.has_ready(0.0)
    table.disconnected()
    assert table.has_ready(0.0), "what was not answered is sent again"


def test_a_frame_has_an_end(table: Confirmations) -> None:
    ids = [f"{number:032x}" for number in range(MAX_BATCH + 1)]
    for request_id in ids:
        table.add(request_id, 0.0)
    assert table.take_batch(0.0) == ids[:MAX_BATCH]
    assert table.take_batch(0.0) == ids[MAX_BATCH:]


def test_a_run_waits_once(table: Confirmations) -> None:
    assert table.add(A, 0.0)
    assert not table.add(A, 1.0)
    assert table.take_batch(1.0) == [A]
    assert not table.add(A, 1.0)


@pytest.mark.parametrize("verdict", [Verdict.CONFIRMED, Verdict.DISCARDED, Verdict.WORKER_LOST])
def test_an_answer_settles_once(table: Confirmations, verdict: Verdict) -> None:
    table.add(A, 0.0)
    table.take_batch(0.0)
    assert table.answer(A, verdict, 1.0)
    assert not table.answer(A, verdict, 1.0)
    assert (len(table), table.in_flight, table.wake_at()) == (0, 0, None)
    assert table.add(A, 2.0)  # A run that nobody waits for leaves nothing behind.


def test_what_the_server_does_not_know_is_asked_again_after_growing_pauses(table: Confirmations) -> None:
    table.add(A, 0.0)
    now = 0.0
    for pause in (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert table.take_batch(now) == [A]
        assert not table.answer(A, None, now)
        assert table.take_batch(now) == []
        assert table.wake_at() == now + pause
        now += pause
    assert table.take_batch(now) == [A]
    assert table.answer(A, Verdict.CONFIRMED, now)


def test_a_second_unknown_to_one_question_changes_nothing(table: Confirmations) -> None:
    table.add(A, 0.0)
    table.take_batch(0.0)
    table.answer(A, None, 0.0)
    table.answer(A, None, 10.0)
    assert table.take_batch(0.05) == [A]


def test_a_verdict_counts_also_when_it_was_not_asked_for(table: Confirmations) -> None:
    table.add(A, 0.0)
    table.take_batch(0.0)
    table.disconnected()
    assert table.answer(A, Verdict.CONFIRMED, 0.0)
    assert table.take_batch(0.0) == []


def test_a_new_stream_repeats_what_was_not_answered_and_that_first(table: Confirmations) -> None:
    for request_id in (A, B):
        table.add(request_id, 0.0)
    table.take_batch(0.0)
    table.answer(A, Verdict.CONFIRMED, 0.0)
    table.add(C, 0.0)
    table.disconnected()
    assert table.in_flight == 0
    assert table.take_batch(0.0) == [B, C]


def test_on_one_stream_nothing_is_repeated_without_an_answer(table: Confirmations) -> None:
    table.add(A, 0.0)
    table.take_batch(0.0)
    assert table.take_batch(WINDOW - 1) == []


def test_withdrawn_before_it_left(table: Confirmations) -> None:
    table.add(A, 0.0)
    assert table.withdraw(A)
    assert not table.withdraw(A)
    assert (len(table), table.take_batch(0.0)) == (0, [])


def test_withdrawn_after_it_left(table: Confirmations) -> None:
    for request_id in (A, B):
        table.add(request_id, 0.0)
    table.take_batch(0.0)
    table.answer(B, None, 0.0)
    assert not table.withdraw(A)  # In flight.
    assert not table.withdraw(B)  # Resting.
    assert not table.answer(A, Verdict.CONFIRMED, 0.0)
    table.disconnected()
    assert table.take_batch(100.0) == []


def test_what_rested_when_it_was_withdrawn_and_added_again_is_asked_once(table: Confirmations) -> None:
    table.add(A, 0.0)
    table.take_batch(0.0)
    table.answer(A, None, 0.0)
    table.withdraw(A)
    table.add(A, 0.0)
    assert table.take_batch(0.0) == [A]
    assert table.take_batch(0.05) == []
    assert table.in_flight == 1


def test_expires_at_the_end_of_its_window(table: Confirmations) -> None:
    table.add(A, 0.0)
    table.take_batch(0.0)
    table.add(B, 10.0)
    assert table.wake_at() == WINDOW
    assert table.expire(WINDOW - 0.001) == []
    assert table.expire(WINDOW) == [A]
    assert table.wake_at() == WINDOW + 10.0
    assert not table.answer(A, Verdict.CONFIRMED, WINDOW)
    assert table.expire(WINDOW + 10.0) == [B]
    assert len(table) == 0


def test_a_window_that_is_learnt_later_counts_for_all(table: Confirmations) -> None:
    table.add(A, 0.0)
    table.window_seconds = 5.0
    assert table.wake_at() == 5.0
    assert table.expire(5.0) == [A]


def test_what_wakes_up_for_an_expiry_finds_it() -> None:
    """The window is added to the time and not taken from it: the two are rounded each in its way."""
    table, asked_at = Confirmations(8.0), 120.14999999999999
    table.add(A, asked_at)
    wake_at = table.wake_at()
    assert wake_at is not None
    assert wake_at - asked_at < 8.0, "this is such a time"
    assert table.expire(wake_at) == [A]


def test_clear_lets_go_of_all(table: Confirmations) -> None:
    for request_id in (A, B, C):
        table.add(request_id, 0.0)
    table.answer(A, Verdict.CONFIRMED, 0.0)
    table.take_batch(0.0)
    table.answer(B, None, 0.0)
    assert table.clear() == [B, C]
    assert (len(table), table.in_flight, table.take_batch(1.0)) == (0, 0, [])


def test_pauses_grow_to_a_second() -> None:
    assert [pause_seconds(attempts) for attempts in (1, 2, 5, 6, 10_000)] == [0.05, 0.1, 0.8, 1.0, 1.0]
