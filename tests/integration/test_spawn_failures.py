"""Local workers that cannot start: it is said in seconds, with the reason, and nobody else suffers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from env_broker.config import BrokerSettings
from env_broker.server import BrokerServer
from tests.helpers.history import History
from tests.helpers.stub_client import StubClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from env_broker.supervisor import LocalView

LUCKY = "lucky=tests.helpers.failing_starts:"
SECONDS = 40
"""In which it must be said, on a machine that does other things too."""


@asynccontextmanager
async def broker_with(**settings: Any) -> AsyncIterator[tuple[BrokerServer, StubClient]]:
    values = {"workers": 1, "drain_seconds": 0.2, "linger_seconds": 0.2, **settings}
    async with (
        BrokerServer(BrokerSettings(**values)) as broker,
        StubClient(broker.address, History()) as client,
    ):
        yield broker, client


async def said_of(reason: str, environment: str, hook: str | None = None) -> None:
    """With that environment and hook no worker starts, for that reason."""
    async with broker_with(environments=(environment,), hook=hook) as (broker, client):
        outcome = await client.run({}, environment="lucky")
        assert (outcome.code, outcome.reason) == ("UNAVAILABLE", "NO_WORKER_READY")
        assert reason in outcome.message
        assert "before it registered" in outcome.message
        (view,) = broker.supervisor.views()
        assert (view.state, view.instance, reason in view.detail) == ("WAITING", "", True)
        # Three starts, each later than the one before: what fails does not spin.
        assert view.restarts == 2


async def test_the_reason_is_in_the_log_and_reaches_the_callers_in_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as failures:
        failures.create_task(said_of("no.such.module", "lucky=no.such.module:thing"))
        failures.create_task(said_of("no_hook", f"{LUCKY}LuckyEnvironment", "tests.helpers.gate:no_hook"))
        failures.create_task(said_of("the licence server does not answer", f"{LUCKY}Raises"))
        failures.create_task(said_of("exited with code 9", f"{LUCKY}Exits"))
        failures.create_task(said_of("was killed by SIGKILL", f"{LUCKY}Killed"))
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    for reason in ("no.such.module", "no_hook", "licence server", "exited with code 9", "SIGKILL"):
        assert sum(reason in message for message in errors) == 3


async def test_the_good_workers_carry_on_and_recover_while_one_cannot_start() -> None:
    async with (
        broker_with(workers=3, environments=(f"{LUCKY}RaisesInSlot1",)) as (broker, client),
        asyncio.timeout(SECONDS),
    ):

        def views() -> dict[int, LocalView]:
            return {view.slot: view for view in broker.supervisor.views()}

        await client.until_serving()
        while not all(views()[slot].instance for slot in (0, 2)):
            await client.run({}, environment="lucky")
        before = views()
        for slot in (0, 2):
            os.kill(before[slot].pid or 0, signal.SIGKILL)
        while not all(views()[slot].instance not in ("", before[slot].instance) for slot in (0, 2)):
            await client.run({}, environment="lucky")
        assert (await client.run({}, environment="lucky")).code == "OK"
        while not (bad := views()[1]).restarts:
            assert (await client.run({}, environment="lucky")).code == "OK"
        assert (bad.instance, "the licence server does not answer" in bad.detail) == ("", True)
        assert broker.supervisor.size == 3
