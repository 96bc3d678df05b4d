"""The worker's session table: epochs, graces, goodbyes, bounds."""

from __future__ import annotations

import pytest

from env_worker.domain.runs import TableFullError
from env_worker.domain.sessions import InvalidSessionError, SessionSupersededError, SessionTable

GRACE = 3.0
A, B, C = ("a" * 32, "b" * 32, "c" * 32)


def table(**arguments: float) -> SessionTable:
    return SessionTable(grace_seconds=GRACE, remember_seconds=120.0, **arguments)  # type: ignore[arg-type]


def test_an_open_session_waits_for_nothing() -> None:
    sessions = table()
    sessions.open(A, 1, 0.0)
    assert (len(sessions), sessions.owner(A), sessions.next_expiry) == (1, 1, None)
    assert sessions.expire(1e9) == []
    assert sessions.owner(A) == 1


def test_a_session_that_does_not_come_back_is_lost_once() -> None:
    sessions = table()
    sessions.open(A, 1, 0.0)
    assert sessions.stream_ended(A, 1, 10.0)
    assert sessions.next_expiry == 13.0
    assert sessions.expire(12.999) == []
    assert sessions.expire(13.0) == [A]
    assert sessions.expire(14.0) == []
    assert (len(sessions), sessions.owner(A), sessions.next_expiry) == (0, None, None)


def test_several_are_lost_in_the_order_of_their_ends() -> None:
    sessions = table()
    for name in (A, B, C):
        sessions.open(name, 1, 0.0)
    for now, name in ((1.0, C), (2.0, A), (3.0, B)):
        sessions.stream_ended(name, 1, now)
    assert sessions.next_expiry == 4.0
    assert sessions.expire(5.0) == [C, A]
    assert sessions.next_expiry == 6.0


def test_coming_back_within_the_grace_goes_on() -> None:
    sessions = table()
    sessions.open(A, 1, 0.0)
    sessions.stream_ended(A, 1, 1.0)
    sessions.open(A, 2, 3.9)
    assert (sessions.owner(A), sessions.next_expiry) == (2, None)
    assert sessions.expire(100.0) == []
    assert sessions.stream_ended(A, 2, 100.0)
    assert sessions.next_expiry == 103.0, "each end has a grace of its own"


def test_coming_back_between_the_graces_end_and_its_loss_still_wins() -> None:
    sessions = table()
    sessions.open(A, 1, 0.0)
    sessions.stream_ended(A, 1, 0.0)
    sessions.open(A, 2, GRACE + 1)
    assert sessions.expire(GRACE + 1) == []


def test_the_end_of_an_older_epoch_means_nothing() -> None:
    sessions = table()
    sessions.open(A, 1, 0.0)
    sessions.open(A, 5, 1.0)
    assert not sessions.stream_ended(A, 1, 2.0)
    assert not sessions.goodbye(A, 1, 2.0)
    assert (sessions.owner(A), sessions.next_expiry) == (5, None)
    assert not sessions.stream_ended(B, 1, 2.0), "nor that of a session that was never open"


def test_a_stream_ends_once() -> None:
    sessions = table()
    sessions.open(A, 1, 0.0)
    assert sessions.stream_ended(A, 1, 1.0)
    assert not sessions.stream_ended(A, 1, 2.0)
    assert sessions.next_expiry == 1.0 + GRACE


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_lower_or_equal_epoch_is_refused_and_changes_nothing(epoch: int) -> None:
    sessions = table()
    sessions.open(A, 2, 0.0)
    with pytest.raises(SessionSupersededError, match=rf"epoch {epoch}, and epoch 2 owns it") as caught:
        sessions.open(A, epoch, 1.0)
    assert A not in str(caught.value)
    sessions.stream_ended(A, 2, 1.0)
    with pytest.raises(SessionSupersededError):
        sessions.open(A, epoch, 2.0)
    assert sessions.expire(1.0 + GRACE) == [A], "its grace went on"


def test_after_a_goodbye_nothing_is_lost() -> None:
    sessions = table()
    sessions.open(A, 1, 0.0)
    assert sessions.goodbye(A, 1, 1.0)
    assert not sessions.stream_ended(A, 1, 1.0)
    assert (len(sessions), sessions.expire(100.0)) == (0, [])


@pytest.mark.parametrize("how", ["goodbye", "lost"])
def test_what_is_over_is_not_taken_up_by_an_open_that_was_long_under_way(how: str) -> None:
    sessions = table()
    sessions.open(A, 3, 0.0)
    if how == "goodbye":
        sessions.goodbye(A, 3, 0.0)
    else:
        sessions.stream_ended(A, 3, 0.0)
        assert sessions.expire(GRACE) == [A]
    with pytest.raises(SessionSupersededError):
        sessions.open(A, 3, 119.0)
    sessions.open(A, 4, 119.0)
    assert sessions.owner(A) == 4
    assert sessions.expire(500.0) == []


def test_what_is_over_is_forgotten_after_a_while() -> None:
    sessions = table()
    sessions.open(A, 3, 0.0)
    sessions.goodbye(A, 3, 0.0)
    sessions.open(A, 1, 120.0)
    assert sessions.owner(A) == 1


def test_a_lost_session_that_a_run_names_is_lost_again_unless_it_comes_back() -> None:
    sessions = table()
    sessions.open(A, 3, 0.0)
    sessions.stream_ended(A, 3, 0.0)
    assert not sessions.named(A, 1.0), "within its grace it waits already"
    assert sessions.expire(GRACE) == [A]
    assert sessions.named(A, 10.0)
    assert not sessions.named(A, 11.0), "the next run lengthens no grace"
    assert (sessions.owner(A), sessions.next_expiry) == (3, 10.0 + GRACE)
    with pytest.raises(SessionSupersededError):
        sessions.open(A, 3, 11.0)
    assert sessions.expire(10.0 + GRACE) == [A]
    assert sessions.named(A, 20.0)
    sessions.open(A, 4, 21.0)
    assert (sessions.owner(A), sessions.next_expiry, sessions.expire(1e9)) == (4, None, [])


def test_a_run_takes_up_no_session_that_said_goodbye_or_is_unknown_or_forgotten() -> None:
    sessions = table()
    for name in (A, B):
        sessions.open(name, 1, 0.0)
    sessions.goodbye(A, 1, 0.0)
    sessions.stream_ended(B, 1, 0.0)
    assert sessions.expire(GRACE) == [B]
    assert not any(sessions.named(name, 10.0) for name in ("", A, C))
    assert not sessions.named(B, GRACE + 120.0), "its epoch is forgotten"
    assert (len(sessions), sessions.next_expiry) == (0, None)


def test_a_lost_session_that_a_run_names_takes_its_room_along() -> None:
    sessions = table(limit=1)
    sessions.open(A, 1, 0.0)
    sessions.stream_ended(A, 1, 0.0)
    assert sessions.expire(GRACE) == [A]
    sessions.open(B, 1, GRACE)
    assert sessions.named(A, GRACE)
    with pytest.raises(TableFullError):
        sessions.open(C, 1, GRACE)
    sessions.stream_ended(B, 1, GRACE)
    assert sessions.expire(2 * GRACE) == [A, B]
    assert sessions.named(B, 7.0)
    assert not sessions.named(A, 7.0), "the oldest made room"


@pytest.mark.parametrize("bad", ["", "abc", A.upper(), A + "0", A + "\n", "g" * 32])
def test_a_malformed_id_is_refused(bad: str) -> None:
    sessions = table()
    with pytest.raises(InvalidSessionError, match=rf"has {len(bad)} characters; it must be 32"):
        sessions.open(bad, 1, 0.0)
    assert len(sessions) == 0


def test_epochs_begin_with_one() -> None:
    with pytest.raises(InvalidSessionError, match="epoch 0; the first is 1"):
        table().open(A, 0, 0.0)


def test_the_number_of_sessions_is_bounded_and_one_within_its_grace_keeps_its_room() -> None:
    sessions = table(limit=1)
    sessions.open(A, 1, 0.0)
    sessions.stream_ended(A, 1, 0.0)
    with pytest.raises(TableFullError, match="1 sessions are open, the limit is 1"):
        sessions.open(B, 1, 1.0)
    sessions.open(A, 2, 1.0)
    sessions.goodbye(A, 2, 2.0)
    sessions.open(B, 1, 2.0)


def test_the_number_of_remembered_epochs_is_bounded_and_the_oldest_makes_room() -> None:
    sessions = table(limit=1)
    for name in (A, B):
        sessions.open(name, 1, 0.0)
        sessions.goodbye(name, 1, 0.0)
    sessions.open(A, 1, 1.0)
    sessions.goodbye(A, 1, 1.0)
    sessions.open(B, 1, 1.0)
