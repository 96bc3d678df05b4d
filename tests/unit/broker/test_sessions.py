"""The broker's sessions: who owns one, when it is lost, and what means nothing."""

from __future__ import annotations

import pytest

from env_broker.sessions import (
    MEMORY_SECONDS,
    InvalidSessionError,
    SessionsFullError,
    SessionTable,
    SupersededError,
)

GRACE = 3.0
A, B, C = ("a" * 32, "b" * 32, "c" * 32)


def table(limit: int = 8) -> SessionTable:
    return SessionTable(grace=GRACE, limit=limit)


def test_a_session_that_does_not_come_back_is_lost_once_at_the_end_of_its_grace() -> None:
    sessions = table()
    sessions.open(A, 1, 0.0)
    assert sessions.next_loss is None
    assert sessions.end(A, 1, 10.0)
    assert sessions.next_loss == 10.0 + GRACE
    assert sessions.lost(12.999) == []
    assert sessions.lost(13.0) == [A]
    assert sessions.lost(99.0) == []
    assert len(sessions) == 0


def test_a_session_that_comes_back_in_its_grace_goes_on() -> None:
    sessions = table()
    sessions.open(A, 1, 0.0)
    sessions.end(A, 1, 1.0)
    sessions.open(A, 2, 3.9)
    assert sessions.open_sessions == {A}
    assert sessions.next_loss is None
    assert sessions.lost(99.0) == []


def test_the_end_of_an_older_stream_means_nothing() -> None:
    sessions = table()
    sessions.open(A, 1, 0.0)
    sessions.open(A, 2, 1.0)
    assert not sessions.end(A, 1, 2.0)
    assert not sessions.goodbye(A, 1, 2.0)
    assert sessions.open_sessions == {A}
    assert sessions.end(A, 2, 2.0)
    assert not sessions.end(A, 2, 2.0)


def test_after_a_goodbye_nothing_is_lost() -> None:
    sessions = table()
    sessions.open(A, 1, 0.0)
    assert sessions.goodbye(A, 1, 1.0)
    assert not sessions.end(A, 1, 1.0)
    assert sessions.lost(99.0) == []


@pytest.mark.parametrize("how", ["open", "away", "lost", "goodbye"])
def test_only_a_higher_epoch_opens_a_known_session(how: str) -> None:
    sessions = table()
    sessions.open(A, 5, 0.0)
    if how == "goodbye":
        sessions.goodbye(A, 5, 0.0)
    elif how != "open":
        sessions.end(A, 5, 0.0)
        assert sessions.lost(GRACE if how == "lost" else 0.0) == ([A] if how == "lost" else [])
    for epoch in (4, 5):
        with pytest.raises(SupersededError, match=f"epoch 5, this stream has {epoch}") as caught:
            sessions.open(A, epoch, GRACE)
        assert A not in str(caught.value)
    sessions.open(A, 6, GRACE)
    assert sessions.open_sessions == {A}


def test_what_is_over_is_remembered_for_a_while() -> None:
    sessions = table()
    sessions.open(A, 5, 0.0)
    sessions.goodbye(A, 5, 1.0)
    with pytest.raises(SupersededError):
        sessions.open(A, 1, 1.0 + MEMORY_SECONDS - 0.001)
    sessions.open(A, 1, 1.0 + MEMORY_SECONDS)


def test_a_session_that_comes_back_before_its_loss_was_told_is_in_time() -> None:
    sessions = table()
    sessions.open(A, 1, 0.0)
    sessions.end(A, 1, 0.0)
    sessions.open(A, 2, 50.0)
    assert sessions.lost(60.0) == []


def test_losses_come_in_order() -> None:
    sessions = table()
    for number, name in enumerate((B, A, C)):
        sessions.open(name, 1, 0.0)
        sessions.end(name, 1, float(number))
    assert sessions.lost(GRACE + 1.0) == [B, A]
    assert sessions.next_loss == GRACE + 2.0


def test_the_number_of_sessions_is_bounded() -> None:
    sessions = table(limit=2)
    sessions.open(A, 1, 0.0)
    sessions.open(B, 1, 0.0)
    sessions.end(B, 1, 0.0)
    with pytest.raises(SessionsFullError, match="there are 2 sessions, the limit is 2"):
        sessions.open(C, 1, 0.0)
    sessions.open(A, 2, 0.0)  # what is known may come back
    sessions.open(B, 2, 0.0)
    for name in (A, B):
        sessions.goodbye(name, 2, 1.0)
    sessions.open(C, 1, 1.0)
    sessions.goodbye(C, 1, 1.0)
    sessions.open(A, 1, 1.0)  # as many as fit are remembered: the oldest is not


@pytest.mark.parametrize(("session_id", "epoch"), [("x", 1), ("A" * 32, 1), ("", 1), (A + "a", 1), (A, 0)])
def test_malformed_opens_are_refused(session_id: str, epoch: int) -> None:
    sessions = table()
    with pytest.raises(InvalidSessionError):
        sessions.open(session_id, epoch, 0.0)
    assert len(sessions) == 0


def test_a_run_of_a_lost_session_gives_it_a_grace_and_its_epoch_stays() -> None:
    sessions = table()
    sessions.open(A, 5, 0.0)
    assert not sessions.expect(A, 0.0), "it is open"
    sessions.end(A, 5, 0.0)
    assert not sessions.expect(A, 1.0), "its grace is not over"
    assert sessions.lost(GRACE) == [A]
    assert sessions.expect(A, 10.0)
    assert not sessions.expect(A, 11.0)
    assert sessions.next_loss == 10.0 + GRACE
    with pytest.raises(SupersededError):
        sessions.open(A, 5, 11.0)
    assert sessions.lost(10.0 + GRACE) == [A], "it is lost again"
    assert sessions.expect(A, 20.0)
    sessions.open(A, 6, 21.0)
    assert sessions.lost(99.0) == []


def test_a_run_of_a_session_that_said_goodbye_or_was_never_seen_gives_none() -> None:
    sessions = table()
    sessions.open(A, 1, 0.0)
    sessions.goodbye(A, 1, 0.0)
    sessions.open(B, 1, 0.0)
    sessions.end(B, 1, 0.0)
    assert sessions.lost(GRACE) == [B]
    assert [sessions.expect(name, GRACE + MEMORY_SECONDS) for name in (A, B, C)] == [False] * 3
    assert sessions.next_loss is None
