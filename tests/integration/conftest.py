"""The whole trio for tests of the client: a broker with two workers, as real processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from env_client import EnvClient
from tests.helpers import oracle
from tests.helpers.pools import Subject, broker_subject
from tests.helpers.recorded_client import RecordedClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(scope="session")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Subject]:
    """It serves "synthetic", "scripted" and "reasoning-gym", with a recording hook."""
    async with broker_subject(tmp_path_factory.mktemp("pool"), "--env", "reasoning-gym") as pool:
        yield pool


@pytest.fixture
async def recorded(pool: Subject) -> AsyncIterator[RecordedClient]:
    """A client of the pool. When the test is over the oracle judges what became of its runs."""
    async with EnvClient(pool.address, env="synthetic", timeout=30.0) as client:
        recorded = RecordedClient(client, pool.pipe.history)
        yield recorded
    oracle.contract_holds(await pool.pipe.at_rest(recorded.runs), asked=len(recorded.runs))
