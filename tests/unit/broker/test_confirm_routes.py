"""Confirmations in the broker's routes: who is asked, what is answered, and what a lost session leaves."""

from __future__ import annotations

import pytest

from env_broker.route import Action, CancelOutcome, ConfirmOutcome, Decision, InvalidRequestIdError
from env_broker.routes import RETENTION_MARGIN_SECONDS, RouteTable

WINDOW = 60.0
RETAINED = WINDOW + RETENTION_MARGIN_SECONDS
A, B, C, D = (letter * 32 for letter in "abcd")
SESSION = "5" * 32

CONFIRMED, DISCARDED = ConfirmOutcome.CONFIRMED, ConfirmOutcome.DISCARDED
UNKNOWN, WORKER_LOST = ConfirmOutcome.UNKNOWN, ConfirmOutcome.WORKER_LOST


def placed(table: RouteTable, name: str, worker: str = "w1", session_id: str = SESSION) -> None:
    assert table.queue(name, session_id, 0.0)
    assert table.place(name, worker)


def replied(table: RouteTable, name: str = A, worker: str = "w1", session_id: str = SESSION) -> None:
    placed(table, name, worker, session_id)
    assert table.replied(name, 0.0, WINDOW)


def answer(outcome: CancelOutcome, *, worker_lost: bool = False) -> Decision:
    return Decision(Action.ANSWER, outcome, worker_lost=worker_lost)


def test_what_has_not_replied_is_unknown() -> None:
    table = RouteTable()
    assert table.confirm(A, 0.0) is UNKNOWN
    assert table.queue(A, "", 0.0)
    assert table.confirm(A, 0.0) is UNKNOWN
    assert table.place(A, "w1")
    assert table.confirm(A, 0.0) is UNKNOWN
    table.confirmed(A, CONFIRMED, 0.0)  # no worker says so; it changes nothing
    assert table.cancel(A, 0.0) == Decision(Action.FORWARD, worker="w1")
    with pytest.raises(InvalidRequestIdError):
        table.confirm("A", 0.0)


@pytest.mark.parametrize(
    ("outcome", "later"), [(CONFIRMED, CancelOutcome.TOO_LATE), (DISCARDED, CancelOutcome.DISCARDED)]
)
def test_the_workers_answer_decides_and_the_route_becomes_a_tombstone(
    outcome: ConfirmOutcome, later: CancelOutcome
) -> None:
    table = RouteTable()
    replied(table)
    assert table.confirm(A, 1.0) is None
    assert table.confirm(A, 1.0) is None, "not decided until the worker has answered"
    table.confirmed(A, outcome, 2.0)
    assert table.confirm(A, 3.0) is outcome
    assert table.cancel(A, 3.0) == answer(later)
    assert len(table) == 0
    table.confirmed(A, CONFIRMED, 3.0)
    assert table.confirm(A, 3.0) is outcome, "the first answer stays"
    assert table.confirm(A, 2.0 + 2 * table.window) is UNKNOWN


def test_a_worker_that_does_not_know_it_decides_nothing() -> None:
    table = RouteTable()
    replied(table)
    table.confirmed(A, UNKNOWN, 1.0)
    assert table.confirm(A, 1.0) is None


def test_a_confirmation_after_a_cancel_is_answered_accordingly() -> None:
    table = RouteTable()
    for name, outcome in ((A, CancelOutcome.DISCARDED), (B, CancelOutcome.TOO_LATE)):
        replied(table, name)
        table.cancel(name, 1.0)
        table.answered(name, outcome, 2.0)
    assert (table.confirm(A, 2.0), table.confirm(B, 2.0)) == (DISCARDED, CONFIRMED)
    table.expire(RETAINED)
    assert (table.confirm(A, RETAINED), table.confirm(B, RETAINED)) == (DISCARDED, CONFIRMED)


def test_of_a_cancel_and_a_confirmation_the_one_that_reached_the_worker_first_is_told_by_both() -> None:
    table = RouteTable()
    replied(table)
    assert table.cancel(A, 1.0).action is Action.FORWARD
    assert table.confirm(A, 1.0) is None
    table.confirmed(A, CONFIRMED, 1.0)
    assert table.answered(A, CancelOutcome.TOO_LATE, 2.0) is CancelOutcome.TOO_LATE
    replied(table, B)
    table.cancel(B, 1.0)
    table.confirm(B, 1.0)
    assert table.answered(B, CancelOutcome.DISCARDED, 2.0) is CancelOutcome.DISCARDED
    table.confirmed(B, DISCARDED, 1.0)
    assert table.cancel(B, 1.0) == answer(CancelOutcome.DISCARDED)


def test_what_a_cancel_is_told_is_what_the_first_was_told() -> None:
    table = RouteTable()
    placed(table, A)
    assert table.answered(A, CancelOutcome.REMEMBERED, 2.0) is CancelOutcome.REMEMBERED
    assert table.answered(A, CancelOutcome.ABORTED, 2.0) is CancelOutcome.ABORTED
    assert table.answered(A, CancelOutcome.DISCARDED, 2.0) is CancelOutcome.ABORTED
    table.ended(A, 1.0)
    assert table.answered(A, CancelOutcome.DISCARDED, 2.0) is CancelOutcome.ABORTED
    assert table.answered(B, CancelOutcome.DISCARDED, 2.0) is CancelOutcome.DISCARDED


def test_a_run_that_was_aborted_has_no_episode() -> None:
    table = RouteTable()
    placed(table, A)
    table.ended(A, 1.0)
    placed(table, B)
    table.lose("w1", 1.0)
    assert (table.confirm(A, 2.0), table.confirm(B, 2.0)) == (DISCARDED, DISCARDED)


def test_a_window_that_is_over_counts_as_a_confirmation() -> None:
    table = RouteTable()
    replied(table)
    table.expire(RETAINED)
    assert table.confirm(A, RETAINED) is CONFIRMED


@pytest.mark.parametrize("lost", [False, True])
def test_of_a_cancel_that_no_worker_answered_nothing_is_made_up(lost: bool) -> None:
    table = RouteTable()
    replied(table)
    table.cancel(A, 1.0)  # the worker discarded it, and its answer did not come
    if lost:
        table.lose("w1", 2.0)
    table.expire(RETAINED)
    assert table.confirm(A, RETAINED) is (WORKER_LOST if lost else UNKNOWN)


def test_of_a_lost_worker_nothing_is_made_up() -> None:
    table = RouteTable()
    replied(table, A)
    replied(table, B)
    replied(table, C)
    table.confirmed(C, CONFIRMED, 1.0)
    table.lose("w1", 2.0)
    assert [table.confirm(name, 3.0) for name in (A, B, C)] == [WORKER_LOST, WORKER_LOST, CONFIRMED]
    assert table.cancel(B, 3.0) == answer(CancelOutcome.TOO_LATE, worker_lost=True)
    assert table.confirm(B, 3.0) is WORKER_LOST
    table.returned("w1")
    assert table.confirm(A, 4.0) is None, "it can be asked again"
    table.lose("w1", 5.0)
    table.expire(RETAINED)
    assert table.confirm(A, RETAINED) is WORKER_LOST


def test_a_restarted_broker_knows_a_run_once_its_worker_reports_it() -> None:
    table = RouteTable()
    assert table.confirm(A, 0.0) is UNKNOWN
    assert not table.adopt(A, SESSION, "w1", 1.0, replied=True, window=WINDOW)
    assert table.confirm(A, 1.0) is None
    table.confirmed(A, CONFIRMED, 1.0)
    assert not table.adopt(A, SESSION, "w1", 2.0, replied=True, window=WINDOW)


def test_a_lost_session_leaves_its_live_runs_and_its_unconfirmed_replies() -> None:
    table = RouteTable()
    assert table.queue(A, SESSION, 0.0)
    placed(table, B)
    replied(table, C)
    replied(table, D)
    replied(table, "e" * 32, session_id="6" * 32)
    replied(table, "f" * 32, session_id="")
    table.confirmed(D, CONFIRMED, 1.0)
    assert table.lose_sessions({SESSION}) == [A, B, C]
    assert table.lose_sessions({"7" * 32}) == []


def test_what_a_lost_worker_replied_to_a_lost_session_is_cancelled_when_the_worker_is_back() -> None:
    table = RouteTable()
    replied(table, A)
    table.lose("w1", 1.0)
    assert table.lose_sessions({SESSION}) == []
    table.returned("w1")
    assert table.adopt(A, SESSION, "w1", 2.0, replied=True, window=WINDOW)


def test_what_a_worker_that_is_lost_after_the_session_has_replied_is_cancelled_when_it_is_back() -> None:
    table = RouteTable()
    replied(table, A)
    assert table.lose_sessions({SESSION}) == [A]
    table.lose("w1", 1.0)  # before it has answered the broker's Cancel, which is tried again
    assert table.cancel(A, 2.0) == answer(CancelOutcome.TOO_LATE, worker_lost=True)
    assert table.confirm(A, 2.0) is WORKER_LOST
    table.returned("w1")
    assert table.adopt(A, SESSION, "w1", 3.0, replied=True, window=WINDOW)
    table.answered(A, CancelOutcome.DISCARDED, 3.0)
    assert table.cancel(A, 4.0) == answer(CancelOutcome.DISCARDED)


def test_a_run_that_waits_is_not_placed_when_its_session_is_lost() -> None:
    table = RouteTable()
    assert table.queue(A, SESSION, 0.0)
    assert table.lose_sessions({SESSION}) == [A]
    assert not table.place(A, "w1"), "although its cancel has yet to come"
    assert table.ended(A, 0.0)
    assert table.cancel(A, 0.0) == answer(CancelOutcome.ABORTED)
