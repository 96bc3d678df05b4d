"""Two stages: one whose target is a worker from outside, one whose target is the broker's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.stage import TARGET, Stage
from tests.helpers import oracle
from tests.helpers.history import History
from tests.helpers.killable_pool import killable_pool
from tests.helpers.snapshot import Snapshot
from tests.helpers.stub_client import StubClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(scope="package", params=["external", "local"])
async def lasting_stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stage]:
    """Starting a pool is dear, so that the tests share two, and leave them with this package."""
    local = request.param == "local"
    directory = tmp_path_factory.mktemp("stage")
    # Holds gRPC's own threads and files, which come and go with its first and last channel.
    async with StubClient("127.0.0.1:1", History()):
        before = Snapshot.take()
        arguments = ("--workers", "1", *TARGET) if local else ()
        async with killable_pool(directory, *arguments) as pool:
            stage = Stage(pool, directory, local=local)
            try:
                yield stage
            finally:
                await stage.close()
        oracle.nothing_left_behind(before, Snapshot.take())


@pytest.fixture
async def stage(lasting_stage: Stage) -> Stage:
    """Each of the two in turn, mended. `external_only` and `local_only` choose one."""
    await lasting_stage.ready()
    return lasting_stage


external_only = pytest.mark.parametrize("lasting_stage", ["external"], indirect=True)
local_only = pytest.mark.parametrize("lasting_stage", ["local"], indirect=True)
