"""The contract of keep and discard, row by row of the design, and the rules of the transition table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from env_worker.domain.ledger import (
    _NEXT,
    LATE_CANCEL_SECONDS,
    CancelOutcome,
    Entry,
    Event,
    LedgerError,
    State,
    diagram,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

REQUEST_ID = "0123456789abcdef" * 2

RUNNING = (Event.STARTED,)
KEEPING = (*RUNNING, Event.FINISHED)
KEPT = (*KEEPING, Event.KEEP_RETURNED)
REPLIED = (*KEPT, Event.REPLIED)
UNKEPT = (*RUNNING, Event.FINISHED_UNKEPT)
REPLIED_UNKEPT = (*UNKEPT, Event.REPLIED)

ENDINGS = (
    Event.CANCEL,
    Event.DEADLINE,
    Event.CALLER_LOST,
    Event.SESSION_LOST,
    Event.STOP,
    Event.BROKEN,
    Event.SEND_FAILED,
    Event.ENCODE_FAILED,
)
PATHS: dict[State, tuple[Event, ...]] = {
    State.QUEUED: (),
    State.RUNNING: RUNNING,
    State.KEEPING: KEEPING,
    State.KEEPING_ABANDONED: (*KEEPING, Event.CANCEL),
    State.KEPT: KEPT,
    State.UNKEPT: UNKEPT,
    State.REPLIED: REPLIED,
    State.REPLIED_UNKEPT: REPLIED_UNKEPT,
    State.ABORTED: (Event.CANCEL,),
    State.DISCARD_DUE: (*REPLIED, Event.CANCEL),
    State.DISCARDING: (*REPLIED, Event.CANCEL, Event.DISCARD_BEGAN),
    State.DISCARDED: (*REPLIED, Event.CANCEL, Event.DISCARD_BEGAN, Event.DISCARD_RETURNED),
    State.DISCARD_FAILED: (*REPLIED, Event.CANCEL, Event.DISCARD_BEGAN, Event.DISCARD_RAISED),
    State.CONFIRMED: (*REPLIED, Event.CONFIRM),
    State.EXPIRED: (*REPLIED, Event.EXPIRE),
}


def entry_after(events: Sequence[Event]) -> Entry:
    entry = Entry(REQUEST_ID, "session")
    for event in events:
        assert entry.settle(event), event
    return entry


def assert_discarded_once(entry: Entry) -> None:
    """The discard is due, one caller gets it, and it is never due again."""
    assert entry.discard_due
    assert [entry.settle(Event.DISCARD_BEGAN) for _ in range(3)] == [True, False, False]
    assert not entry.discard_due
    assert entry.settle(Event.DISCARD_RETURNED)
    assert entry.state is State.DISCARDED
    for event in (*ENDINGS, Event.CONFIRM, Event.EXPIRE, Event.DISCARD_BEGAN):
        assert not entry.settle(event)
    assert entry.closed
    assert not entry.delivered
    assert not entry.discard_due


def test_the_window_is_a_minute_unless_it_is_set() -> None:
    assert LATE_CANCEL_SECONDS == 60.0


# The rows of the design's table.


def test_keep_raises_then_discard_once_and_the_cause_is_the_hook() -> None:
    entry = entry_after(KEEPING)
    assert entry.settle(Event.KEEP_RAISED)
    assert entry.cause is Event.KEEP_RAISED
    assert not entry.settle(Event.CANCEL)
    assert entry.outcome is CancelOutcome.ABORTED
    assert_discarded_once(entry)


@pytest.mark.parametrize("ending", ENDINGS)
def test_ended_while_it_waits_for_a_hook_thread_keep_is_not_called_and_nothing_discarded(
    ending: Event,
) -> None:
    entry = entry_after(RUNNING)
    assert entry.settle(ending)
    assert not entry.settle(Event.FINISHED), "the thread that came free must not begin keep"
    assert entry.state is State.ABORTED
    assert not entry.discard_due
    assert entry.closed


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("end_of_keep", [Event.KEEP_RETURNED, Event.KEEP_RAISED])
def test_ended_while_keep_runs_then_keep_runs_to_its_end_then_discard_once(
    ending: Event, end_of_keep: Event
) -> None:
    entry = entry_after(KEEPING)
    assert entry.settle(ending)
    assert entry.settled, "the caller is answered at once"
    assert (entry.cause, entry.outcome) == (ending, CancelOutcome.ABORTED)
    assert not entry.discard_due, "keep still runs"
    with pytest.raises(LedgerError):
        entry.settle(Event.DISCARD_BEGAN)
    assert entry.settle(end_of_keep)
    assert entry.cause is ending, "the first settlement stays"
    assert_discarded_once(entry)


@pytest.mark.parametrize("ending", ENDINGS)
def test_ended_after_keep_and_before_the_reply_then_discard_once(ending: Event) -> None:
    entry = entry_after(KEPT)
    assert entry.settle(ending)
    assert (entry.cause, entry.outcome) == (ending, CancelOutcome.ABORTED)
    assert not entry.settle(Event.REPLIED), "the run that lost ends CANCELLED"
    assert_discarded_once(entry)


@pytest.mark.parametrize("ending", [Event.ENCODE_FAILED, Event.SEND_FAILED])
def test_the_final_flush_or_the_reply_cannot_be_encoded_or_sent(ending: Event) -> None:
    entry = entry_after(KEPT)
    assert entry.settle(ending)
    assert_discarded_once(entry)


@pytest.mark.parametrize("ending", [Event.BROKEN, Event.CALLER_LOST, Event.DEADLINE])
def test_the_reply_was_written_but_its_stream_ends_not_ok(ending: Event) -> None:
    entry = entry_after(KEPT)  # REPLIED is settled between the write and status OK: whoever comes first, wins
    assert entry.settle(ending)
    assert not entry.settle(Event.REPLIED)
    assert_discarded_once(entry)


def test_the_broker_took_the_reply_and_its_hop_to_the_client_broke_so_it_sends_the_cancel() -> None:
    entry = entry_after(REPLIED)
    assert entry.settle(Event.CANCEL)
    assert entry.outcome is CancelOutcome.DISCARDED
    assert_discarded_once(entry)


@pytest.mark.parametrize("before", [KEEPING, KEPT])
def test_sigterm_while_keep_runs_or_before_the_reply_is_as_cancel(before: tuple[Event, ...]) -> None:
    entry = entry_after(before)
    assert entry.settle(Event.STOP)
    if entry.state is State.KEEPING_ABANDONED:
        assert entry.settle(Event.KEEP_RETURNED)
    assert_discarded_once(entry)


@pytest.mark.parametrize("taken_back", [Event.CANCEL, Event.SESSION_LOST])
def test_taken_back_within_the_window(taken_back: Event) -> None:
    entry = entry_after(REPLIED)
    assert entry.replied
    assert entry.settle(taken_back)
    assert not entry.replied
    assert (entry.cause, entry.outcome) == (taken_back, CancelOutcome.DISCARDED)
    assert_discarded_once(entry)


@pytest.mark.parametrize(
    ("event", "state"), [(Event.CONFIRM, State.CONFIRMED), (Event.EXPIRE, State.EXPIRED)]
)
def test_confirmed_or_expired_is_delivered_for_good(event: Event, state: State) -> None:
    entry = entry_after(REPLIED)
    assert entry.settle(event)
    assert entry.state is state
    assert entry.delivered
    assert entry.closed
    for late in (*ENDINGS, Event.CONFIRM, Event.EXPIRE):
        assert not entry.settle(late)
    assert (entry.cause, entry.outcome) == (event, CancelOutcome.TOO_LATE)
    assert not entry.discard_due


@pytest.mark.parametrize(
    "event", [event for event in ENDINGS if event not in (Event.CANCEL, Event.SESSION_LOST)]
)
def test_after_the_reply_nothing_but_a_cancel_or_its_session_takes_it_back(event: Event) -> None:
    """SIGTERM leaves the window open, and a caller that is lost after status OK may have got it."""
    entry = entry_after(REPLIED)
    assert not entry.settle(event)
    assert entry.state is State.REPLIED
    assert entry.cause is None
    assert entry.outcome is None


RACERS = (Event.CANCEL, Event.CONFIRM, Event.SESSION_LOST, Event.EXPIRE, Event.DEADLINE, Event.CALLER_LOST)


@pytest.mark.parametrize("first", RACERS)
@pytest.mark.parametrize("second", RACERS)
def test_of_two_together_the_first_settles_it(first: Event, second: Event) -> None:
    entry = entry_after(REPLIED)
    winners = [event for event in (first, second) if entry.settle(event)]
    assert len(winners) <= 1
    assert entry.cause is (winners[0] if winners else None)


@pytest.mark.parametrize("state", list(State))
def test_a_cancel_after_the_settlement_changes_nothing(state: State) -> None:
    entry = entry_after(PATHS[state])
    if not entry.settled:
        assert entry.settle(Event.CANCEL) is True
        return
    before = (entry.state, entry.cause, entry.outcome)
    assert not entry.settle(Event.CANCEL)
    assert (entry.state, entry.cause, entry.outcome) == before
    assert entry.outcome is not None


def test_discard_raises_and_is_not_tried_again() -> None:
    entry = entry_after((*REPLIED, Event.CANCEL, Event.DISCARD_BEGAN))
    assert entry.settle(Event.DISCARD_RAISED)
    assert entry.state is State.DISCARD_FAILED
    assert entry.closed
    assert not entry.settle(Event.DISCARD_BEGAN)
    assert entry.outcome is CancelOutcome.DISCARDED


@pytest.mark.parametrize("event", [Event.ENVIRONMENT_FAILED, Event.REFUSED])
def test_no_episode_then_neither_keep_nor_discard(event: Event) -> None:
    entry = entry_after(RUNNING)
    assert entry.settle(event)
    assert entry.closed
    assert not entry.discard_due
    assert (entry.cause, entry.outcome) == (event, CancelOutcome.ABORTED)


# Runs without a hook.


@pytest.mark.parametrize("ending", ENDINGS)
def test_without_a_hook_a_run_that_ends_before_its_reply_discards_nothing(ending: Event) -> None:
    entry = entry_after(UNKEPT)
    assert entry.settle(ending)
    assert not entry.settle(Event.REPLIED)
    assert (entry.state, entry.outcome) == (State.ABORTED, CancelOutcome.ABORTED)


@pytest.mark.parametrize("taken_back", [Event.CANCEL, Event.SESSION_LOST])
def test_without_a_hook_a_reply_is_taken_back_and_nothing_is_due(taken_back: Event) -> None:
    entry = entry_after(REPLIED_UNKEPT)
    assert entry.replied
    assert entry.settle(taken_back)
    assert (entry.state, entry.outcome) == (State.DISCARDED, CancelOutcome.DISCARDED)
    assert not entry.settle(Event.DISCARD_BEGAN), "discard is never called for what was never kept"


@pytest.mark.parametrize("event", [Event.CONFIRM, Event.EXPIRE])
def test_without_a_hook_an_episode_is_delivered_all_the_same(event: Event) -> None:
    entry = entry_after(REPLIED_UNKEPT)
    assert entry.settle(event)
    assert entry.delivered


# The table's own rules.


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", list(Event))
def test_every_event_in_every_state_moves_loses_or_is_refused(state: State, event: Event) -> None:
    entry = entry_after(PATHS[state])
    before = (entry.state, entry.cause, entry.outcome)
    following = _NEXT[state].get(event)
    if following is None:
        with pytest.raises(LedgerError, match=rf"{event.name} is impossible in state {state.name}") as caught:
            entry.settle(event)
        assert REQUEST_ID not in str(caught.value), "a request_id is a capability"
        assert REQUEST_ID[:8] in str(caught.value)
    else:
        assert entry.settle(event) is (following is not state)
        assert entry.state is following
    if following in (None, state):
        assert (entry.state, entry.cause, entry.outcome) == before
    assert (entry.cause is None) == (entry.outcome is None) == (not entry.settled)


@pytest.mark.parametrize("state", list(State))
def test_what_comes_from_outside_is_never_impossible(state: State) -> None:
    assert {*ENDINGS, Event.CONFIRM} <= _NEXT[state].keys()


def test_every_state_is_reached_by_its_path() -> None:
    assert {state: entry_after(path).state for state, path in PATHS.items()} == {
        state: state for state in State
    }


def test_no_way_leads_from_keeping_to_a_discard_but_through_the_end_of_keep() -> None:
    for state in (State.KEEPING, State.KEEPING_ABANDONED):
        for event, following in _NEXT[state].items():
            if event not in (Event.KEEP_RETURNED, Event.KEEP_RAISED):
                assert following in (State.KEEPING, State.KEEPING_ABANDONED), event


def test_a_closed_state_leads_nowhere() -> None:
    for state, path in PATHS.items():
        if entry_after(path).closed:
            assert set(_NEXT[state].values()) == {state}


def test_the_diagram_shows_every_move_and_no_lost_event() -> None:
    lines = diagram().splitlines()
    assert lines[:2] == ["stateDiagram-v2", "    [*] --> QUEUED"]
    shown = set()
    for line in lines[2:]:
        arrow, _, events = line.strip().partition(": ")
        source, target = arrow.split(" --> ")
        if target == "[*]":
            assert entry_after(PATHS[State[source]]).closed
        shown |= {(source, name, target) for name in events.split(", ") if name}
    assert shown == {
        (state.name, event.name, following.name)
        for state, row in _NEXT.items()
        for event, following in row.items()
        if following is not state
    }
