"""Session: at its end, whatever that is, nobody waits for ever."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from env_client.channels import open_sync_channel
from env_client.confirmations import Verdict
from env_client.errors import SessionEndedError
from env_client.session import Session
from tests.helpers.scripted_service import ScriptedService
from tests.helpers.scripted_session import SessionLine

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc

    from tests.helpers.answers import Answers

    Open = Callable[[ScriptedService], Session]

A = "a" * 32
SECONDS = 20


def test_closing_lets_what_waits_be_answered(
    confirming: ScriptedService, open_session: Open, answers: Answers
) -> None:
    opens, sessions = threading.Event(), confirming.sessions
    assert sessions is not None
    confirming.on_session(SessionLine(opens=opens))
    session = open_session(confirming)
    answers.ask(session, A)
    closing = threading.Thread(target=session.close, args=(SECONDS,))
    closing.start()
    opens.set()
    assert answers.next() == (A, Verdict.CONFIRMED)
    closing.join(SECONDS)
    assert sessions.ends == ["goodbye"]


@pytest.mark.parametrize("line", [SessionLine(parts=False), SessionLine(opens=threading.Event())])
def test_closing_is_bounded(line: SessionLine, answers: Answers) -> None:
    with ScriptedService(sessions=True) as service:
        service.on_session(line)
        session = Session(lambda: open_sync_channel(service.address, None))
        session.open()
        assert service.sessions is not None
        service.sessions.wait_until(lambda came: len(came.opens) == 1)
        session.close(0.1)
        answers.ask(session, A)
        assert answers.next() == (A, Verdict.UNANSWERED)
        if line.opens is not None:
            line.opens.set()


def test_closing_while_the_server_is_gone_does_not_wait() -> None:
    connected = threading.Event()

    def open_channel() -> grpc.Channel:
        connected.set()
        return open_sync_channel("127.0.0.1:1", None)

    session = Session(open_channel)
    session.open()
    assert connected.wait(SECONDS)
    session.close(1000.0)


def test_a_channel_that_its_owner_closed(answers: Answers, caplog: pytest.LogCaptureFixture) -> None:
    channel = open_sync_channel("127.0.0.1:1", None)
    channel.close()
    session = Session(lambda: channel, owns_channel=False)
    answers.ask(session, A)
    assert isinstance(answers.next()[1], SessionEndedError)
    assert "it broke" in caplog.text
    session.close(5)


def test_where_no_thread_starts_any_more(monkeypatch: pytest.MonkeyPatch, answers: Answers) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    session = Session(lambda: open_sync_channel("127.0.0.1:1", None))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        answers.ask(session, A)
    assert answers.next() == (A, Verdict.UNANSWERED)
    session.close(5)


def test_many_threads_share_one_session(confirming: ScriptedService, answers: Answers) -> None:
    session = Session(lambda: open_sync_channel(confirming.address, None))
    together = threading.Barrier(8)

    def ask(number: int) -> None:
        together.wait(SECONDS)
        answers.ask(session, f"{number:032x}")

    askers = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for asker in askers:
        asker.start()
    assert {answers.next()[1] for _ in askers} == {Verdict.CONFIRMED}
    session.close(5)
    assert confirming.sessions is not None
    assert len(confirming.sessions.opens) == 1
