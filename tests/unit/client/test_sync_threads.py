"""SyncEnvClient: one client, many threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from env_client import SyncEnvClient, sync
from env_client.channels import open_sync_channel
from tests.helpers.deltas import episode_stream
from tests.helpers.scripted_service import Send

if TYPE_CHECKING:
    import grpc
    import pytest

    from tests.helpers.scripted_service import ScriptedService

THREADS, RUNS_EACH = 16, 3
SECONDS = 20


def test_sixteen_threads_share_a_channel_and_a_session(
    confirming: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def counted(target: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
        opened.append(threading.current_thread().name)
        return open_sync_channel(target, credentials)

    monkeypatch.setattr(sync, "open_sync_channel", counted)
    for _ in range(THREADS * RUNS_EACH):
        confirming.on_run(*[Send(message) for message in episode_stream()])
    together = threading.Barrier(THREADS)

    def run(client: SyncEnvClient) -> list[bool]:
        together.wait(SECONDS)  # None has used the client yet.
        return [client.run({}).head.ok for _ in range(RUNS_EACH)]

    with SyncEnvClient(confirming.address) as client, ThreadPoolExecutor(THREADS) as threads:
        runs = [threads.submit(run, client) for _ in range(THREADS)]
        assert [each.result(SECONDS) for each in runs] == [[True] * RUNS_EACH] * THREADS
    sessions = confirming.sessions
    assert sessions is not None
    assert sessions.opens == [(confirming.runs[0].session_id, 1)]
    assert {asked.session_id for asked in confirming.runs} == {confirming.runs[0].session_id}
    assert sorted(sessions.confirmed_ids()) == sorted(asked.request_id for asked in confirming.runs)
    assert sessions.ends == ["goodbye"]
    assert confirming.cancelled_ids() == []
    assert len(opened) == 2  # The client's own, and the session's.
