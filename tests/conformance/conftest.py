"""The two subjects of the suite, as real processes: a bare worker, and a broker with two workers.

Both are called in both ways: runs are carried by Run, and in the stream of a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.helpers import oracle
from tests.helpers.history import History
from tests.helpers.pools import Subject, broker_subject, worker_subject
from tests.helpers.session_stream import SessionStream
from tests.helpers.stub_client import StubClient, new_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.helpers.stub_client import Transport

SUBJECTS = {"worker": worker_subject, "broker": broker_subject}


@pytest.fixture(scope="session", params=SUBJECTS)
async def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Subject]:
    """What is tested; it serves all tests, which therefore disturb nobody but themselves."""
    async with SUBJECTS[request.param](tmp_path_factory.mktemp(request.param)) as subject:
        yield subject


@pytest.fixture
async def client(subject: Subject, transport: Transport) -> AsyncIterator[StubClient]:
    """A client of the subject. When the test is over the oracle judges all that happened to its runs."""
    async with StubClient(subject.address, subject.pipe.history, transport) as client:
        yield client
        oracle.promises_hold(await subject.pipe.at_rest(client.runs), asked=client.asked)


@pytest.fixture
async def by_hand(client: StubClient) -> AsyncIterator[SessionStream]:
    """A session's open stream, whose frames the test makes."""
    stream = await SessionStream(client.stub, History()).open(new_id())
    yield stream
    stream.drop()
