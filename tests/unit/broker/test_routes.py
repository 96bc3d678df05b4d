"""The broker's routes: where a Cancel goes in each state, and what is remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from env_broker.route import (
    Action,
    CancelOutcome,
    Decision,
    DuplicateRouteError,
    InvalidRequestIdError,
    RouteError,
    RoutesFullError,
    RouteState,
)
from env_broker.routes import RETENTION_MARGIN_SECONDS, RouteTable

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW = 60.0
RETAINED = WINDOW + RETENTION_MARGIN_SECONDS

ABORTED = Decision(Action.ANSWER, CancelOutcome.ABORTED)
DISCARDED = Decision(Action.ANSWER, CancelOutcome.DISCARDED)
TOO_LATE = Decision(Action.ANSWER, CancelOutcome.TOO_LATE)
LOST_BEFORE = Decision(Action.ANSWER, CancelOutcome.ABORTED, worker_lost=True)
LOST_AFTER = Decision(Action.ANSWER, CancelOutcome.TOO_LATE, worker_lost=True)
REMEMBER = Decision(Action.REMEMBER, CancelOutcome.REMEMBERED)
REMOVE = Decision(Action.REMOVE_FROM_QUEUE, CancelOutcome.ABORTED)
TO_W1 = Decision(Action.FORWARD, worker="w1")


def request_id(number: int) -> str:
    return f"{number:032x}"


A, B, C = (request_id(number) for number in (0xA << 100, 0xB << 100, 0xC << 100))


def placed(
    table: RouteTable, name: str, *, worker: str = "w1", session_id: str = "", now: float = 0.0
) -> None:
    assert table.queue(name, session_id, now)
    assert table.place(name, worker)


def replied(
    table: RouteTable, name: str, *, worker: str = "w1", session_id: str = "", now: float = 0.0
) -> None:
    placed(table, name, worker=worker, session_id=session_id, now=now)
    assert table.replied(name, now, WINDOW)


def test_a_waiting_run_is_removed_and_never_placed() -> None:
    table = RouteTable()
    assert table.queue(A, "", 0.0)
    assert table.cancel(A, 1.0) == REMOVE
    assert table.cancel(A, 2.0) == ABORTED
    assert not table.place(A, "w1"), "the slot that came free goes to another run"
    assert len(table) == 0


def test_a_cancel_follows_the_run_to_its_worker_before_and_after_the_reply() -> None:
    table = RouteTable()
    placed(table, A)
    assert table.cancel(A, 1.0) == TO_W1
    assert table.cancel(A, 2.0) == TO_W1
    assert table.replied(A, 3.0, WINDOW), "the worker decided for the reply"
    assert table.cancel(A, 3.0 + RETAINED - 0.001) == TO_W1


def test_a_replied_route_is_retained_for_the_window_and_ten_seconds() -> None:
    table = RouteTable()
    replied(table, A)
    table.expire(RETAINED - 0.001)
    assert table.cancel(A, RETAINED) == TO_W1
    replied(table, B)
    table.expire(RETAINED)
    assert table.cancel(B, RETAINED) == TOO_LATE
    assert table.cancel(A, RETAINED).outcome is CancelOutcome.REMEMBERED, "the worker never answered"
    table.expire(RETAINED + 2 * WINDOW)
    assert table.cancel(A, RETAINED + 2 * WINDOW) == REMEMBER


def test_routes_with_a_shorter_window_may_wait_for_those_before_them() -> None:
    table = RouteTable()
    placed(table, A)
    placed(table, B)
    assert table.replied(A, 0.0, 100.0)
    assert table.replied(B, 0.0, 1.0)
    table.expire(50.0)
    assert len(table) == 2
    table.expire(110.0)
    assert len(table) == 0


@pytest.mark.parametrize("outcome", [CancelOutcome.ABORTED, CancelOutcome.DISCARDED, CancelOutcome.TOO_LATE])
def test_the_first_answer_of_a_worker_is_given_to_every_further_cancel(outcome: CancelOutcome) -> None:
    table = RouteTable()
    replied(table, A)
    table.cancel(A, 1.0)
    table.answered(A, outcome, 2.0)
    table.answered(A, CancelOutcome.ABORTED, 2.0)
    expected = Decision(Action.ANSWER, outcome)
    assert table.cancel(A, 2.0) == expected
    table.lose("w1", 3.0)
    assert table.cancel(A, 4.0) == expected
    table.expire(RETAINED)
    assert table.cancel(A, RETAINED) == expected


def test_a_live_run_that_was_answered_about_is_not_asked_about_again() -> None:
    table = RouteTable()
    placed(table, A)
    table.cancel(A, 1.0)
    table.answered(A, CancelOutcome.ABORTED, 1.0)
    assert table.cancel(A, 2.0) == Decision(Action.ANSWER, CancelOutcome.ABORTED)


def test_a_worker_that_only_remembers_is_asked_again() -> None:
    table = RouteTable()
    placed(table, A)
    table.cancel(A, 1.0)
    table.answered(A, CancelOutcome.REMEMBERED, 2.0)
    assert table.cancel(A, 2.0) == TO_W1


def test_an_answer_for_a_run_that_is_over_changes_nothing() -> None:
    table = RouteTable()
    placed(table, A)
    assert table.ended(A, 1.0)
    table.answered(A, CancelOutcome.DISCARDED, 2.0)
    table.answered(B, CancelOutcome.DISCARDED, 2.0)
    assert table.cancel(A, 2.0) == ABORTED


@pytest.mark.parametrize("outcome", [CancelOutcome.ABORTED, CancelOutcome.DISCARDED])
def test_a_reply_that_was_taken_back_on_its_way_is_not_passed_on(outcome: CancelOutcome) -> None:
    table = RouteTable()
    placed(table, A)
    table.cancel(A, 1.0)
    table.answered(A, outcome, 2.0)
    assert not table.replied(A, 2.0, WINDOW)
    assert table.cancel(A, 3.0) == Decision(Action.ANSWER, outcome)


def test_a_reply_that_is_delivered_for_good_is_passed_on() -> None:
    table = RouteTable()
    placed(table, A)
    table.answered(A, CancelOutcome.TOO_LATE, 2.0)
    assert table.replied(A, 2.0, WINDOW)
    assert table.cancel(A, 3.0) == TOO_LATE


def test_a_lost_worker_before_and_after_the_reply() -> None:
    table = RouteTable()
    placed(table, A)
    replied(table, B)
    placed(table, C, worker="w2")
    assert table.lose("w1", 1.0) == [A]
    assert table.cancel(A, 2.0) == LOST_BEFORE
    assert table.cancel(B, 2.0) == LOST_AFTER
    assert table.cancel(B, 3.0) == LOST_AFTER
    assert table.cancel(C, 2.0) == Decision(Action.FORWARD, worker="w2")
    assert not table.replied(A, 2.0, WINDOW), "what was given up is not delivered"
    assert not table.ended(A, 2.0)
    assert not table.cut(A, 2.0, WINDOW)
    assert not table.unplace(A, 2.0)
    assert not table.withdraw(A, 2.0)


def test_a_hop_that_broke_leaves_the_run_where_cancels_reach_it() -> None:
    table = RouteTable()
    placed(table, A)
    assert table.cut(A, 0.0, WINDOW)
    assert not table.ended(A, 0.0)
    assert table.cancel(A, 1.0) == TO_W1
    assert table.lose("w1", 2.0) == [A]
    assert table.cancel(A, 3.0) == LOST_BEFORE
    placed(table, B)
    table.cut(B, 0.0, WINDOW)
    table.expire(RETAINED)
    assert table.cancel(B, RETAINED) == ABORTED


def test_a_run_that_was_refused_before_admission_waits_again() -> None:
    table = RouteTable()
    placed(table, A)
    assert table.unplace(A, 1.0)
    route = table.get(A)
    assert route is not None
    assert (route.state, route.worker) == (RouteState.QUEUED, None)
    assert table.place(A, "w2")
    assert table.cancel(A, 2.0) == Decision(Action.FORWARD, worker="w2")


def test_a_run_that_was_cancelled_at_the_worker_that_refused_it_is_not_placed_elsewhere() -> None:
    table = RouteTable()
    placed(table, A)
    assert table.cancel(A, 1.0) == TO_W1
    assert not table.unplace(A, 2.0)
    assert not table.place(A, "w2")
    assert table.cancel(A, 3.0) == ABORTED


@pytest.mark.parametrize("place", [False, True])
def test_a_run_that_was_never_admitted_may_come_again(place: bool) -> None:
    table = RouteTable()
    assert table.queue(A, "", 0.0)
    if place:
        table.place(A, "w1")
    assert table.withdraw(A, 1.0)
    assert table.queue(A, "", 2.0)


def test_a_run_that_was_cancelled_and_never_admitted_is_spent() -> None:
    table = RouteTable()
    placed(table, A)
    table.cancel(A, 1.0)
    assert not table.withdraw(A, 2.0)
    with pytest.raises(DuplicateRouteError):
        table.queue(A, "", 3.0)


def test_a_cancel_that_overtook_its_run_applies_to_it() -> None:
    table = RouteTable(window=WINDOW)
    assert table.cancel(A, 0.0) == REMEMBER
    assert not table.queue(A, "", WINDOW - 0.001)
    assert table.cancel(A, WINDOW) == ABORTED


def test_a_remembered_cancel_is_forgotten_after_the_window() -> None:
    table = RouteTable(window=WINDOW)
    table.cancel(A, 0.0)
    table.cancel(A, 1.0)
    assert table.queue(B, "", WINDOW)
    assert table.queue(A, "", WINDOW + 1)


def test_a_known_id_is_refused_and_its_run_untouched() -> None:
    table = RouteTable(window=WINDOW)
    placed(table, A)
    with pytest.raises(DuplicateRouteError) as caught:
        table.queue(A, "", 1.0)
    assert A not in str(caught.value)
    assert table.cancel(A, 1.0) == TO_W1
    table.ended(A, 2.0)
    with pytest.raises(DuplicateRouteError):
        table.queue(A, "", 2.0 + 2 * WINDOW - 0.001)
    assert table.queue(A, "", 2.0 + 2 * WINDOW)


# Workers that register and report what they hold.


@pytest.mark.parametrize("is_replied", [False, True])
def test_a_reported_run_is_found_by_its_cancel(is_replied: bool) -> None:
    table = RouteTable()
    assert not table.adopt(A, "session", "w1", 0.0, replied=is_replied, window=WINDOW)
    assert table.cancel(A, 1.0) == TO_W1
    assert [route.request_id for route in table.session_runs({"session"})] == [A]
    table.lose("w1", 2.0)
    assert table.cancel(A, 3.0) == (LOST_AFTER if is_replied else LOST_BEFORE)


def test_a_remembered_cancel_applies_to_a_reported_run() -> None:
    table = RouteTable()
    table.cancel(A, 0.0)
    assert table.adopt(A, "", "w1", 1.0, replied=True, window=WINDOW)
    assert table.cancel(A, 2.0) == TO_W1


def test_a_worker_that_comes_back_hears_which_runs_were_given_up() -> None:
    table = RouteTable()
    placed(table, A)
    replied(table, B)
    replied(table, C)
    table.lose("w1", 1.0)
    assert table.cancel(C, 2.0) == LOST_AFTER
    table.returned("w1")
    assert table.adopt(A, "", "w1", 3.0, replied=False, window=WINDOW), "its caller was told ABORTED"
    assert not table.adopt(B, "", "w1", 3.0, replied=True, window=WINDOW)
    assert table.adopt(C, "", "w1", 3.0, replied=True, window=WINDOW), "it was cancelled meanwhile"
    assert table.cancel(B, 4.0) == TO_W1, "it can be taken back again"
    assert table.cancel(C, 4.0) == TO_W1, "its worker's answer counts"
    assert table.answered(C, CancelOutcome.DISCARDED, 4.0) is CancelOutcome.DISCARDED
    assert table.cancel(C, 5.0).outcome is CancelOutcome.DISCARDED


def test_a_cancel_of_a_reply_whose_worker_is_lost_for_good_stays_unknown() -> None:
    table = RouteTable()
    replied(table, A)
    table.lose("w1", 1.0)
    assert table.cancel(A, 2.0) == table.cancel(A, 3.0) == LOST_AFTER
    table.expire(1_000.0)
    assert table.get(A) is None
    decision = table.cancel(A, 1_000.0)
    assert (decision.outcome, decision.worker_lost) == (CancelOutcome.REMEMBERED, True)


def test_a_worker_that_comes_back_is_asked_about_what_it_settled_and_does_not_report() -> None:
    table = RouteTable()
    replied(table, A)
    replied(table, B, worker="w2")
    table.lose("w1", 1.0)
    table.lose("w2", 1.0)
    table.returned("w1")
    assert table.cancel(A, 2.0) == TO_W1
    table.answered(A, CancelOutcome.DISCARDED, 2.0)
    assert table.cancel(A, 3.0) == DISCARDED
    assert table.cancel(B, 3.0) == LOST_AFTER


def test_a_cancel_whose_forwarding_was_not_answered_is_sent_again_when_the_worker_comes_back() -> None:
    table = RouteTable()
    replied(table, A)
    table.cancel(A, 1.0)
    table.lose("w1", 2.0)
    assert table.cancel(A, 2.5) == LOST_AFTER, "what the caller hears until then"
    assert table.adopt(A, "", "w1", 3.0, replied=True, window=WINDOW)


@pytest.mark.parametrize("lost", [False, True])
def test_a_cancel_that_no_worker_answered_outlives_its_route(lost: bool) -> None:
    table = RouteTable()
    replied(table, A)
    table.cancel(A, 1.0)
    if lost:
        table.lose("w1", 2.0)
    table.expire(RETAINED)
    assert table.cancel(A, RETAINED).outcome is CancelOutcome.REMEMBERED
    table.returned("w1")
    assert table.adopt(A, "", "w1", RETAINED, replied=True, window=WINDOW)
    assert table.answered(A, CancelOutcome.DISCARDED, RETAINED) is CancelOutcome.DISCARDED
    assert table.cancel(A, RETAINED) == DISCARDED


def test_an_id_that_was_sent_again_elsewhere_leaves_the_old_live_run_to_be_cancelled() -> None:
    table = RouteTable()
    placed(table, A, worker="w2")
    assert table.adopt(A, "", "w1", 1.0, replied=False, window=WINDOW)
    assert not table.adopt(A, "", "w1", 1.0, replied=True, window=WINDOW)
    assert table.cancel(A, 2.0) == Decision(Action.FORWARD, worker="w2")


def test_a_session_has_the_runs_that_can_still_be_ended() -> None:
    table = RouteTable()
    placed(table, A, session_id="mine")
    replied(table, B, session_id="mine")
    replied(table, C, session_id="other")
    assert [route.request_id for route in table.session_runs({"mine"})] == [A, B]
    assert table.answered(B, CancelOutcome.TOO_LATE, 2.0) is CancelOutcome.TOO_LATE
    assert [route.request_id for route in table.session_runs({"mine"})] == [A]


# Bounds and errors.


def test_the_number_of_live_runs_is_bounded() -> None:
    table = RouteTable(limit=1)
    placed(table, A)
    with pytest.raises(RoutesFullError, match="holds 1 runs, its limit is 1"):
        table.queue(B, "", 1.0)
    with pytest.raises(RoutesFullError):
        table.adopt(B, "", "w1", 1.0, replied=True, window=WINDOW)
    assert table.replied(A, 1.0, WINDOW)
    assert table.queue(B, "", 1.0), "what has replied takes no room of live runs"


def test_the_number_of_retained_routes_is_bounded() -> None:
    table = RouteTable(retained_limit=1)
    placed(table, B)
    replied(table, A)
    with pytest.raises(RoutesFullError, match=r"1 replies .* limit is 1; .*confirm .*--late-cancel-seconds"):
        table.queue(C, "", 1.0)
    assert table.replied(B, 1.0, WINDOW), "what was taken is retained all the same"
    table.expire(1.0 + RETAINED)
    assert table.queue(C, "", 1.0 + RETAINED)


@pytest.mark.parametrize("way", ["replied, then answered", "answered, then replied", "answered, then cut"])
def test_a_route_whose_outcome_is_known_takes_no_room(way: str) -> None:
    table = RouteTable(retained_limit=1)
    placed(table, A)
    if way == "replied, then answered":
        assert table.replied(A, 1.0, WINDOW)
        table.answered(A, CancelOutcome.TOO_LATE, 1.0)
    else:
        table.answered(A, CancelOutcome.TOO_LATE, 1.0)
        assert table.get(A) is not None, "its stream is open"
        assert table.cut(A, 1.0, WINDOW) if way.endswith("cut") else table.replied(A, 1.0, WINDOW)
    assert table.get(A) is None
    assert table.cancel(A, 2.0) == TOO_LATE
    assert table.queue(B, "", 2.0)
    assert not table.ended(A, 2.0)


def test_the_number_of_known_ids_is_bounded() -> None:
    table = RouteTable(known_limit=1, window=WINDOW)
    placed(table, A)
    table.ended(A, 0.0)
    with pytest.raises(RoutesFullError, match="remembers 1 request_ids, its limit is 1"):
        table.queue(B, "", 1.0)
    assert table.queue(B, "", 2 * WINDOW)


def test_the_number_of_remembered_cancels_is_bounded() -> None:
    table = RouteTable(remembered_limit=1)
    table.cancel(A, 0.0)
    with pytest.raises(RoutesFullError, match="the limit is 1") as caught:
        table.cancel(B, 1.0)
    assert B not in str(caught.value)
    assert table.cancel(A, 1.0) == REMEMBER


@pytest.mark.parametrize("bad", ["", "xyz", A.upper(), A + "\n"])
def test_a_malformed_id_is_refused_and_disturbs_nothing(bad: str) -> None:
    table = RouteTable()
    placed(table, A)
    for call in (lambda: table.queue(bad, "", 0.0), lambda: table.cancel(bad, 0.0), lambda: table.get(bad)):
        with pytest.raises(InvalidRequestIdError, match=f"has {len(bad)} characters"):
            call()
    assert len(table) == 1


IMPOSSIBLE: list[tuple[str, Callable[[RouteTable], object]]] = [
    ("place", lambda table: table.place(A, "w2")),
    ("unplace", lambda table: table.unplace(B, 0.0)),
    ("unplace", lambda table: table.unplace(C, 0.0)),
    ("withdraw", lambda table: table.withdraw(C, 0.0)),
    ("replied", lambda table: table.replied(B, 0.0, WINDOW)),
    ("replied", lambda table: table.replied(C, 0.0, WINDOW)),
    ("cut", lambda table: table.cut(C, 0.0, WINDOW)),
]


@pytest.mark.parametrize(("step", "call"), IMPOSSIBLE)
def test_what_cannot_happen_is_refused_and_changes_nothing(
    step: str, call: Callable[[RouteTable], object]
) -> None:
    table = RouteTable()
    placed(table, A)
    assert table.queue(B, "", 0.0)
    replied(table, C)
    with pytest.raises(RouteError, match=f"{step} is impossible"):
        call(table)
    states = [route.state for name in (A, B, C) if (route := table.get(name)) is not None]
    assert states == [RouteState.PLACED, RouteState.QUEUED, RouteState.REPLIED]


def test_a_run_that_is_unknown_counts_as_over() -> None:
    table = RouteTable()
    assert not table.place(A, "w1")
    assert not table.unplace(A, 0.0)
    assert not table.withdraw(A, 0.0)
    assert not table.replied(A, 0.0, WINDOW)
    assert not table.cut(A, 0.0, WINDOW)
    assert not table.ended(A, 0.0)
