"""A run in a session, disturbed at each of its suspension points, by the tests of test_relay_suspensions."""

from __future__ import annotations

import asyncio

import pytest
from envtrio.v1 import env_service_pb2 as pb

from env_broker.client_hop import SessionHop
from env_broker.session_outbox import Outbox
from tests.helpers.scripted_worker import ScriptedWorker
from tests.integration import test_relay_suspensions
from tests.integration.test_relay_suspensions import (
    test_a_run_that_is_disturbed_at_each_suspension,
    test_a_worker_that_is_lost_at_each_suspension,
)

__all__ = ["test_a_run_that_is_disturbed_at_each_suspension", "test_a_worker_that_is_lost_at_each_suspension"]


class SessionClient(SessionHop):
    """A client that reads its session's stream, each message in an event-loop turn of its own."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self._outbox = Outbox(self._news)
        super().__init__(self._outbox.outlet(1, 2**40), 20.0)

    async def admitted(self) -> None:
        await super().admitted()
        await asyncio.sleep(0)  # as that test counts it among the places

    def _news(self) -> None:
        asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        message = pb.SessionResponse.FromString(self._outbox.message() or b"")
        self.taken += [
            frame.run_data.data for frame in (message, *message.more) if frame.HasField("run_data")
        ]
        asyncio.get_running_loop().call_soon(self._outbox.written)


@pytest.fixture(autouse=True, params=[False, True], ids=["run", "lane"])
def by_lane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the broker sends its runs to the worker in one stream, or each by a call of its own."""
    monkeypatch.setattr(test_relay_suspensions, "RecordingHop", SessionClient)
    monkeypatch.setattr(ScriptedWorker, "carries_runs", request.param)
    return bool(request.param)
