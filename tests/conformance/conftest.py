"""The two subjects of the suite, as real processes: a bare worker, and a broker with two workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.helpers import oracle
from tests.helpers.pools import Subject, broker_subject, worker_subject
from tests.helpers.stub_client import StubClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SUBJECTS = {"worker": worker_subject, "broker": broker_subject}


@pytest.fixture(scope="session", params=SUBJECTS)
async def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Subject]:
    """What is tested; it serves all tests, which therefore disturb nobody but themselves."""
    async with SUBJECTS[request.param](tmp_path_factory.mktemp(request.param)) as subject:
        yield subject


@pytest.fixture
async def client(subject: Subject) -> AsyncIterator[StubClient]:
    """A client of the subject. When the test is over the oracle judges all that happened to its runs."""
    async with StubClient(subject.address, subject.pipe.history) as client:
        yield client
        oracle.promises_hold(await subject.pipe.at_rest(client.runs), asked=client.asked)
