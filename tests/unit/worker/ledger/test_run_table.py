"""The worker's run table: admission, cancels that come early or late, windows, bounds."""

from __future__ import annotations

import tracemalloc

import pytest

from env_worker.domain.ledger import CancelOutcome, Entry, Event, LedgerError, State
from env_worker.domain.runs import (
    ConfirmOutcome,
    DuplicateRequestError,
    InvalidRequestIdError,
    RunTable,
    TableFullError,
)
from env_worker.domain.tombstones import Tombstones

WINDOW = 60.0


def request_id(number: int) -> str:
    return f"{number:032x}"


A, B, C = (request_id(number) for number in (0xA << 100, 0xB << 100, 0xC << 100))


def replied(table: RunTable, name: str, now: float, *, session_id: str = "") -> Entry:
    entry = table.admit(name, session_id, now)
    for event in (Event.STARTED, Event.FINISHED, Event.KEEP_RETURNED, Event.REPLIED):
        assert table.settle(entry, event, now)
    return entry


def discard(table: RunTable, entry: Entry, now: float) -> None:
    assert table.settle(entry, Event.DISCARD_BEGAN, now)
    assert table.settle(entry, Event.DISCARD_RETURNED, now)


def test_an_admitted_run_is_found_until_it_is_closed() -> None:
    table = RunTable()
    entry = table.admit(A, "session", 0.0)
    assert (entry.request_id, entry.session_id, entry.state) == (A, "session", State.QUEUED)
    assert table.get(A) is entry
    assert table.entries() == (entry,)
    assert len(table) == 1
    assert table.settle(entry, Event.REFUSED, 0.0)
    assert table.get(A) is None
    assert len(table) == 0


@pytest.mark.parametrize("bad", ["", "abc", A.upper(), A + "0", A + "\n", "g" * 32, "ａ" * 32])
def test_a_malformed_id_is_refused_and_disturbs_nothing(bad: str) -> None:
    table = RunTable()
    entry = table.admit(A, "", 0.0)
    for call in (
        lambda: table.admit(bad, "", 0.0),
        lambda: table.cancel(bad, 0.0),
        lambda: table.confirm(bad, 0.0),
        lambda: table.get(bad),
    ):
        with pytest.raises(InvalidRequestIdError, match=rf"has {len(bad)} characters; it must be 32"):
            call()
    assert table.entries() == (entry,)


def test_a_known_id_is_refused_while_it_lives_and_for_two_windows_after() -> None:
    table = RunTable(late_cancel_seconds=WINDOW)
    entry = table.admit(A, "", 0.0)
    with pytest.raises(DuplicateRequestError) as caught:
        table.admit(A, "", 1.0)
    assert A not in str(caught.value)
    assert entry.state is State.QUEUED, "the first run is untouched"
    table.settle(entry, Event.DEADLINE, 10.0)
    with pytest.raises(DuplicateRequestError, match="within 120 s"):
        table.admit(A, "", 10.0 + 2 * WINDOW - 0.001)
    assert table.admit(A, "", 10.0 + 2 * WINDOW) is not entry


def test_a_cancel_that_overtook_its_run_applies_to_it() -> None:
    table = RunTable()
    assert table.cancel(A, 0.0) is CancelOutcome.REMEMBERED
    entry = table.admit(A, "", WINDOW - 0.001)
    assert (entry.state, entry.cause) == (State.ABORTED, Event.CANCEL)
    assert not table.settle(entry, Event.STARTED, WINDOW)
    assert len(table) == 0
    assert table.cancel(A, WINDOW) is CancelOutcome.ABORTED
    with pytest.raises(DuplicateRequestError):
        table.admit(A, "", WINDOW)


def test_a_remembered_cancel_is_forgotten_after_the_window_that_its_last_repetition_began() -> None:
    table = RunTable(late_cancel_seconds=WINDOW)
    table.cancel(A, 0.0)
    table.cancel(B, 1.0)
    assert table.cancel(A, 50.0) is CancelOutcome.REMEMBERED
    assert table.admit(B, "", 61.0).state is State.QUEUED
    assert table.admit(A, "", 109.0).state is State.ABORTED
    table.cancel(C, 110.0)
    table.expire(170.0)
    assert table.admit(C, "", 170.0).state is State.QUEUED


def test_cancel_of_a_live_run_and_again() -> None:
    table = RunTable()
    entry = table.admit(A, "", 0.0)
    for event in (Event.STARTED, Event.FINISHED):
        table.settle(entry, event, 0.0)
    assert table.cancel(A, 1.0) is CancelOutcome.ABORTED
    assert table.cancel(A, 2.0) is CancelOutcome.ABORTED
    assert entry.state is State.KEEPING_ABANDONED
    assert table.get(A) is entry, "it stays until it is discarded"
    assert table.settle(entry, Event.KEEP_RETURNED, 3.0)
    discard(table, entry, 4.0)
    assert table.cancel(A, 5.0) is CancelOutcome.ABORTED
    assert table.confirm(A, 5.0) is ConfirmOutcome.DISCARDED


def test_cancel_within_the_window_and_again() -> None:
    table = RunTable()
    entry = replied(table, A, 0.0)
    assert table.cancel(A, WINDOW - 0.001) is CancelOutcome.DISCARDED
    assert table.open_windows == 0
    assert table.confirm(A, WINDOW) is ConfirmOutcome.DISCARDED
    discard(table, entry, WINDOW)
    assert table.cancel(A, WINDOW) is CancelOutcome.DISCARDED
    assert table.expire(1000.0) == []


def test_confirm_closes_the_window_at_once() -> None:
    table = RunTable()
    replied(table, A, 0.0)
    assert table.confirm(A, 1.0) is ConfirmOutcome.CONFIRMED
    assert table.confirm(A, 2.0) is ConfirmOutcome.CONFIRMED
    assert table.cancel(A, 2.0) is CancelOutcome.TOO_LATE
    assert table.next_expiry is None


def test_confirm_of_what_is_unknown_or_has_not_replied() -> None:
    table = RunTable()
    assert table.confirm(A, 0.0) is ConfirmOutcome.UNKNOWN
    entry = table.admit(A, "", 0.0)
    assert table.confirm(A, 0.0) is ConfirmOutcome.UNKNOWN
    assert entry.state is State.QUEUED


def test_windows_expire_in_order() -> None:
    table = RunTable(late_cancel_seconds=WINDOW)
    first, second, third = (replied(table, name, now) for name, now in ((A, 0.0), (B, 1.0), (C, 2.0)))
    assert (table.open_windows, table.next_expiry, table.last_expiry) == (3, WINDOW, WINDOW + 2)
    table.confirm(B, 3.0)
    assert table.expire(WINDOW - 0.001) == []
    assert table.expire(WINDOW + 0.5) == [first]
    assert (first.state, first.window_ends) == (State.EXPIRED, WINDOW)
    assert table.next_expiry == WINDOW + 2
    assert table.expire(500.0) == [third]
    assert table.last_expiry is None
    assert second.state is State.CONFIRMED
    assert table.cancel(A, 121.0 + WINDOW) is CancelOutcome.REMEMBERED, (
        "its tombstone is gone after two windows"
    )


def test_a_cancel_between_the_end_of_the_window_and_its_closing_still_wins() -> None:
    table = RunTable()
    replied(table, A, 0.0)
    assert table.cancel(A, WINDOW + 5) is CancelOutcome.DISCARDED
    assert table.expire(WINDOW + 6) == []


def test_a_lost_session_takes_its_runs_and_no_other() -> None:
    table = RunTable()
    live, late = table.admit(A, "mine", 0.0), replied(table, B, 0.0, session_id="mine")
    other = replied(table, C, 0.0, session_id="other")
    assert table.settle_all(Event.SESSION_LOST, 1.0, session_id="mine") == [live, late]
    assert (live.state, late.state, other.state) == (State.ABORTED, State.DISCARD_DUE, State.REPLIED)


def test_sigterm_takes_live_runs_and_leaves_windows_open() -> None:
    table = RunTable()
    live, late = table.admit(A, "", 0.0), replied(table, B, 0.0)
    assert table.settle_all(Event.STOP, 1.0) == [live]
    assert late.state is State.REPLIED
    assert table.cancel(B, 2.0) is CancelOutcome.DISCARDED


def test_an_impossible_event_changes_nothing() -> None:
    table = RunTable()
    entry = table.admit(A, "", 0.0)
    with pytest.raises(LedgerError):
        table.settle(entry, Event.REPLIED, 0.0)
    assert (entry.state, table.open_windows, len(table)) == (State.QUEUED, 0, 1)


def test_the_number_of_live_runs_is_bounded() -> None:
    table = RunTable(limit=1)
    replied(table, A, 0.0)
    entry = table.admit(B, "", 0.0)  # an open window takes no room of live runs
    with pytest.raises(TableFullError, match="holds 1 runs, its limit is 1; send the run again later"):
        table.admit(C, "", 0.0)
    table.settle(entry, Event.CANCEL, 0.0)
    assert table.admit(C, "", 0.0).state is State.QUEUED


def test_a_discard_that_has_not_returned_counts_as_live() -> None:
    table = RunTable(limit=1)
    entry = replied(table, A, 0.0)
    table.cancel(A, 0.0)
    with pytest.raises(TableFullError, match="holds 1 runs"):
        table.admit(B, "", 0.0)
    discard(table, entry, 0.0)
    assert table.admit(B, "", 0.0).state is State.QUEUED


def test_the_number_of_open_windows_is_bounded() -> None:
    table = RunTable(window_limit=1)
    replied(table, A, 0.0)
    with pytest.raises(TableFullError, match=r"1 replies .* limit is 1; .*confirm .*--late-cancel-seconds"):
        table.admit(B, "", 0.0)
    table.confirm(A, 1.0)
    assert table.admit(B, "", 1.0).state is State.QUEUED


def test_more_than_sixteen_thousand_replies_may_wait_for_the_end_of_their_windows() -> None:
    table = RunTable()
    for number in range(16_385):
        replied(table, request_id(number), 0.0)
    assert table.open_windows == 16_385


def test_the_number_of_known_ids_is_bounded_so_that_a_settlement_always_has_its_tombstone() -> None:
    table = RunTable(known_limit=2)
    table.settle(table.admit(A, "", 0.0), Event.CANCEL, 0.0)
    table.admit(B, "", 0.0)
    with pytest.raises(TableFullError, match="remembers 2 request_ids, its limit is 2"):
        table.admit(C, "", 1.0)
    assert table.admit(C, "", 2 * WINDOW).state is State.QUEUED


def test_the_number_of_remembered_cancels_is_bounded() -> None:
    table = RunTable(remembered_limit=1)
    table.cancel(A, 0.0)
    with pytest.raises(TableFullError, match="the limit is 1") as caught:
        table.cancel(B, 1.0)
    assert B not in str(caught.value)
    assert table.cancel(A, 2.0) is CancelOutcome.REMEMBERED, "a repeated one needs no more room"
    assert table.cancel(B, 2.0 + WINDOW) is CancelOutcome.REMEMBERED


def test_a_full_table_does_not_lose_a_remembered_cancel() -> None:
    table = RunTable(limit=1)
    table.cancel(A, 0.0)
    blocker = table.admit(B, "", 0.0)
    with pytest.raises(TableFullError):
        table.admit(A, "", 1.0)
    table.settle(blocker, Event.CANCEL, 1.0)
    assert table.admit(A, "", 2.0).state is State.ABORTED


@pytest.mark.parametrize("count", [50_000, 87_400])  # the second: just after the dict has grown
def test_a_tombstone_takes_less_than_200_bytes(count: int) -> None:
    tracemalloc.start()
    try:
        tombstones = Tombstones(120.0)
        before, _ = tracemalloc.get_traced_memory()
        for number in range(count):
            tombstones.add(number.to_bytes(16, "big"), CancelOutcome.TOO_LATE, float(number))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(tombstones) == count
    assert (after - before) / count < 200


def test_what_is_over_is_known_by_its_last_forgetting_and_then_costs_nothing() -> None:
    table = RunTable(late_cancel_seconds=WINDOW)
    assert table.last_forgetting is None
    for number, name in enumerate((A, B)):
        replied(table, name, float(number))
        assert table.confirm(name, float(number)) is ConfirmOutcome.CONFIRMED
    assert table.last_forgetting == 1.0 + 2 * WINDOW
    table.expire(2 * WINDOW)
    assert table.confirm(A, 2 * WINDOW) is ConfirmOutcome.UNKNOWN
    assert table.confirm(B, 2 * WINDOW) is ConfirmOutcome.CONFIRMED
    table.expire(1.0 + 2 * WINDOW)
    assert table.last_forgetting is None
