"""Fixtures of the client's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from env_client.channels import open_sync_channel
from env_client.session import Session
from tests.helpers.answers import Answers
from tests.helpers.deltas import opening
from tests.helpers.scripted_service import Hang, ScriptedService, Send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


TRANSPORTS: Final = ("run", "lane")
"""A module's own TRANSPORTS says by which its tests are done; Run alone, where it has none."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "carries" in metafunc.fixturenames:
        transports = getattr(metafunc.module, "TRANSPORTS", TRANSPORTS[:1])
        if len(transports) > 1:
            metafunc.parametrize("carries", [name == "lane" for name in transports], ids=transports)


@pytest.fixture
def carries() -> bool:
    """Whether the scripted server carries the runs of asynchronous clients in their lanes."""
    return False


@pytest.fixture
def service(carries: bool) -> Iterator[ScriptedService]:
    """A scripted server; what it was told to expect must have come when the test ends."""
    with ScriptedService(carries=carries) as scripted:
        yield scripted


@pytest.fixture
def confirming(carries: bool) -> Iterator[ScriptedService]:
    """A scripted server with sessions."""
    with ScriptedService(sessions=True, carries=carries) as scripted:
        yield scripted


@pytest.fixture
def carrying() -> Iterator[ScriptedService]:
    """A scripted server with sessions that carries runs."""
    with ScriptedService(sessions=True, carries=True) as scripted:
        yield scripted


@pytest.fixture
def hanging_run(service: ScriptedService) -> Callable[[], None]:
    """Makes the service ready for a run (which need not come) that opens a trace and then says no more."""

    def prepare() -> None:
        service.on_run(Send(opening()), Hang(), optional=True)

    return prepare


@pytest.fixture
def answers() -> Answers:
    """Asks for confirmations, and collects what they come to."""
    return Answers()


@pytest.fixture
def open_session() -> Iterator[Callable[[ScriptedService], Session]]:
    """Opens sessions with a service, which are closed when the test ends."""
    opened: list[Session] = []

    def session_to(service: ScriptedService) -> Session:
        session = Session(lambda: open_sync_channel(service.address, None))
        opened.append(session)
        session.open()
        return session

    yield session_to
    for session in opened:
        session.close(5)
