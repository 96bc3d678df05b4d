"""Session: confirmations leave together, are repeated over streams, and nobody waits for ever."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from env_client.channels import open_sync_channel
from env_client.confirmations import MAX_BATCH, Verdict
from env_client.errors import SessionEndedError
from env_client.session import Session
from tests.helpers.scripted_end import End
from tests.helpers.scripted_service import ScriptedService
from tests.helpers.scripted_session import CONFIRMED, DISCARDED, UNKNOWN, WORKER_LOST, SessionLine

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.answers import Answers

    Open = Callable[[ScriptedService], Session]

A, B, C = "a" * 32, "b" * 32, "c" * 32
GONE = End(grpc.StatusCode.UNAVAILABLE)
SECONDS = 20


def test_opens_confirms_and_says_goodbye(
    confirming: ScriptedService, open_session: Open, answers: Answers
) -> None:
    session, sessions = open_session(confirming), confirming.sessions
    assert sessions is not None
    answers.ask(session, A)
    assert answers.next() == (A, Verdict.CONFIRMED)
    session.close(5)
    assert sessions.opens == [(session.session_id, 1)]
    assert (sessions.frames, sessions.ends) == ([[A]], ["goodbye"])
    session.close(5)  # Idempotent.


def test_a_session_that_was_never_opened_has_nothing_to_say(confirming: ScriptedService) -> None:
    session = Session(lambda: open_sync_channel(confirming.address, None))
    session.close(5)
    session.open()  # Comes too late, and is no error.
    assert confirming.sessions is not None
    assert confirming.sessions.opens == []


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [(CONFIRMED, Verdict.CONFIRMED), (DISCARDED, Verdict.DISCARDED), (WORKER_LOST, Verdict.WORKER_LOST)],
)
def test_answers(
    confirming: ScriptedService, open_session: Open, answers: Answers, outcome: Any, verdict: Verdict
) -> None:
    confirming.on_session(SessionLine(answering=lambda _: outcome))
    answers.ask(open_session(confirming), A)
    assert answers.next() == (A, verdict)


def test_what_comes_during_a_write_leaves_together(
    confirming: ScriptedService, open_session: Open, answers: Answers
) -> None:
    opens, sessions = threading.Event(), confirming.sessions
    assert sessions is not None
    confirming.on_session(SessionLine(opens=opens))
    session = open_session(confirming)
    ids = [f"{number:032x}" for number in range(MAX_BATCH + 5)]
    for request_id in ids:
        answers.ask(session, request_id)
    sessions.wait_until(lambda came: len(came.opens) == 1)
    opens.set()
    assert [answers.next() for _ in ids] == [(request_id, Verdict.CONFIRMED) for request_id in ids]
    assert sessions.frames == [ids[:MAX_BATCH], ids[MAX_BATCH:]]


def test_what_is_unknown_is_asked_again(
    confirming: ScriptedService, open_session: Open, answers: Answers
) -> None:
    outcomes = iter([UNKNOWN, 99, UNKNOWN, CONFIRMED])  # 99 is of a later version of the protocol.
    confirming.on_session(SessionLine(answering=lambda _: next(outcomes)))  # type: ignore[arg-type,return-value]
    answers.ask(open_session(confirming), A)
    assert answers.next() == (A, Verdict.CONFIRMED)
    assert confirming.sessions is not None
    assert confirming.sessions.frames == [[A]] * 4


def test_answers_are_heard_in_all_frames_of_a_message(
    confirming: ScriptedService, open_session: Open, answers: Answers
) -> None:
    opens = threading.Event()
    confirming.on_session(SessionLine(opens=opens, apart=True))
    session = open_session(confirming)
    for request_id in (A, B, C):
        answers.ask(session, request_id)
    opens.set()
    assert [answers.next() for _ in range(3)] == [(run, Verdict.CONFIRMED) for run in (A, B, C)]
    assert confirming.sessions is not None
    assert confirming.sessions.frames == [[A, B, C]]


@pytest.mark.parametrize(
    "broken",
    [SessionLine(refuse=GONE), SessionLine(breaks=GONE), SessionLine(breaks=End(grpc.StatusCode.INTERNAL))],
    ids=["refused", "broke", "failed"],
)
def test_the_next_epoch_repeats_what_was_not_answered(
    confirming: ScriptedService, open_session: Open, answers: Answers, broken: SessionLine
) -> None:
    confirming.on_session(broken, broken)
    session, sessions = open_session(confirming), confirming.sessions
    assert sessions is not None
    answers.ask(session, A)
    assert answers.next() == (A, Verdict.CONFIRMED)
    assert sessions.opens == [(session.session_id, epoch) for epoch in (1, 2, 3)]
    assert sessions.frames[-1] == [A]


def test_what_one_worker_does_not_answer_holds_up_no_other(
    confirming: ScriptedService, open_session: Open, answers: Answers
) -> None:
    confirming.on_session(SessionLine(answering=lambda run: None if run == A else CONFIRMED))
    session = open_session(confirming)
    for request_id in (A, B, C):
        answers.ask(session, request_id)
    assert {answers.next()[0], answers.next()[0]} == {B, C}
    session.close(0.1)
    assert answers.next() == (A, Verdict.UNANSWERED)


def test_a_server_that_comes_late(answers: Answers, open_session: Open) -> None:
    with ScriptedService(sessions=True) as first:
        port = int(first.address.rpartition(":")[2])
        session = Session(lambda: open_sync_channel(f"127.0.0.1:{port}", None))
    answers.ask(session, A)
    with ScriptedService(port=port, sessions=True):
        assert answers.next() == (A, Verdict.CONFIRMED)
        session.close(5)


def test_gives_up_at_the_end_of_the_window(answers: Answers) -> None:
    line = SessionLine(answering=lambda _: None)
    with ScriptedService(late_cancel_seconds=0.1, sessions=True) as service:
        service.on_session(line)
        session = Session(lambda: open_sync_channel(service.address, None))
        answers.ask(session, A)
        assert answers.next() == (A, Verdict.UNANSWERED)
        session.close(5)
        assert service.sessions is not None
        assert service.sessions.ends == ["goodbye"]


def test_a_server_without_sessions_is_asked_once(
    service: ScriptedService, open_session: Open, answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    session = open_session(service)
    for request_id in (A, B):
        answers.ask(session, request_id)
        assert answers.next() == (request_id, Verdict.NOT_OFFERED)
    session.open()
    assert caplog.text.count("the server has no sessions") == 1


@pytest.mark.parametrize(
    "end",
    [
        End(grpc.StatusCode.ABORTED, "SESSION_SUPERSEDED"),
        End(grpc.StatusCode.FAILED_PRECONDITION, "PROTOCOL_GENERATION"),
        End(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"),
        End(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
    ],
    ids=lambda end: end.code.name,
)
def test_ended_for_good(
    confirming: ScriptedService,
    open_session: Open,
    answers: Answers,
    caplog: pytest.LogCaptureFixture,
    end: End,
) -> None:
    confirming.on_session(SessionLine(breaks=end))
    session = open_session(confirming)
    answers.ask(session, A)
    settlement = answers.next()[1]
    assert isinstance(settlement, SessionEndedError)
    assert (settlement.code, settlement.reason) == (end.code.name, end.reason)
    answers.ask(session, B)
    assert isinstance(answers.next()[1], SessionEndedError)
    with pytest.raises(SessionEndedError, match="make a new client"):
        session.open()
    assert session.session_id[:8] in caplog.text
    assert session.session_id not in caplog.text


def test_other_aborts_are_repeated(confirming: ScriptedService, open_session: Open, answers: Answers) -> None:
    confirming.on_session(SessionLine(refuse=End(grpc.StatusCode.ABORTED)))
    answers.ask(open_session(confirming), A)
    assert answers.next() == (A, Verdict.CONFIRMED)


def test_withdrawn_before_it_left(confirming: ScriptedService, open_session: Open, answers: Answers) -> None:
    opens = threading.Event()
    confirming.on_session(SessionLine(opens=opens))
    session = open_session(confirming)
    ticket = answers.ask(session, A)
    answers.ask(session, B)
    session.withdraw(ticket)
    opens.set()
    assert answers.next() == (B, Verdict.CONFIRMED)
    assert confirming.sessions is not None
    assert confirming.sessions.frames == [[B]]
    session.close(5)
    session.withdraw(ticket)  # Comes too late, and is no error.
    assert answers.none_came()


def test_withdrawn_after_it_left_is_not_repeated(
    confirming: ScriptedService, open_session: Open, answers: Answers
) -> None:
    held, sessions = threading.Event(), confirming.sessions
    assert sessions is not None
    confirming.on_session(SessionLine(held=held, breaks=None))
    session = open_session(confirming)
    ticket = answers.ask(session, A)
    sessions.wait_until(lambda came: came.frames == [[A]])
    session.withdraw(ticket)
    answers.ask(session, B)
    held.set()
    assert answers.next() == (B, Verdict.CONFIRMED)
    assert answers.none_came()


def test_a_second_run_of_one_id_does_not_take_the_firsts_place(
    confirming: ScriptedService, open_session: Open, answers: Answers
) -> None:
    opens = threading.Event()
    confirming.on_session(SessionLine(opens=opens))
    session = open_session(confirming)
    answers.ask(session, A)
    second = answers.ask(session, A)
    assert answers.next() == (A, Verdict.UNANSWERED)
    session.withdraw(second)
    opens.set()
    assert answers.next() == (A, Verdict.CONFIRMED)
