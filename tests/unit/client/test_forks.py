"""A client and a fork: made before, it is another in each child; used before, it says so at once."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from env_client import EnvClient, SyncEnvClient, home
from env_client.channels import open_sync_channel
from env_client.confirmations import Verdict
from env_client.courier import CancelCourier
from env_client.home import Home
from env_client.session import Session
from tests.helpers.deltas import episode_stream, opening
from tests.helpers.scripted_service import Hang, Send

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.answers import Answers
    from tests.helpers.scripted_service import ScriptedService

A = "a" * 32
TRANSPORTS = ("run", "lane")
NEXT_STEP = "used in process 1 and is called in process 2, a fork of it.*make the client after the fork"


@pytest.fixture
def go_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the client believe that it runs in this process; at first that is 1."""
    here = [1]
    monkeypatch.setattr(home, "os", SimpleNamespace(getpid=lambda: here[0]))
    return lambda pid: here.__setitem__(0, pid)


def replies(service: ScriptedService, times: int = 1) -> None:
    for _ in range(times):
        service.on_run(*[Send(message) for message in episode_stream()])


def test_a_home(go_to: Callable[[int], None]) -> None:
    place = Home()
    go_to(2)
    place.check()  # Not used in any: as good as made here.
    assert not place.is_foreign
    place.claim()
    place.claim()
    go_to(1)
    assert place.is_foreign
    for call in (place.check, place.claim):
        with pytest.raises(RuntimeError, match="used in process 2 and is called in process 1"):
            call()
    go_to(2)
    place.check()


def test_a_session_has_its_id_from_its_opening(
    confirming: ScriptedService, go_to: Callable[[int], None], answers: Answers
) -> None:
    session = Session(lambda: open_sync_channel(confirming.address, None))
    assert session.session_id == ""
    go_to(2)
    assert len(session.open()) == 32
    assert session.open() == session.session_id
    go_to(1)
    for call in (session.open, lambda: session.confirm(A, lambda _: None)):
        with pytest.raises(RuntimeError, match="make the client after the fork"):
            call()
    session.close(1000.0)  # Nothing of it is here: it does not wait.
    go_to(2)
    answers.ask(session, A)  # The parent's goes on.
    assert answers.next() == (A, Verdict.CONFIRMED)
    session.close(5)
    assert confirming.sessions is not None
    assert confirming.sessions.ends == ["goodbye"]


def test_a_courier_carries_nothing_of_its_parent(
    service: ScriptedService, go_to: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    courier = CancelCourier(lambda: open_sync_channel(service.address, None), window_seconds=60.0)
    courier.send(A, "")
    service.wait_for_cancels(1)
    go_to(2)
    courier.send("b" * 32, "")
    courier.close(1000.0)
    assert "run=bbbbbbbb: not cancelled, it belongs to the process before the fork" in caplog.text
    go_to(1)
    courier.close(5)
    assert service.cancelled_ids() == [A]


def test_the_synchronous_client_in_a_fork(confirming: ScriptedService, go_to: Callable[[int], None]) -> None:
    replies(confirming, 2)
    with SyncEnvClient(confirming.address) as client:
        client.run({})
        go_to(2)
        for call in (lambda: client.run({}), lambda: client.cancel(A), client.health, client.describe):
            with pytest.raises(RuntimeError, match=NEXT_STEP):
                call()
        with pytest.raises(RuntimeError, match=NEXT_STEP), client.stream({}):
            pass
        client.close(1000.0)
        go_to(1)
        client.run({})  # The parent's goes on.
    assert confirming.cancelled_ids() == []
    with pytest.raises(RuntimeError, match="make a new SyncEnvClient"):
        client.health()


async def test_the_asynchronous_client_in_a_fork(
    confirming: ScriptedService, go_to: Callable[[int], None]
) -> None:
    replies(confirming, 2)
    async with EnvClient(confirming.address) as client:
        await client.run({})
        go_to(2)
        for call in (lambda: client.run({}), lambda: client.cancel(A), client.health, client.describe):
            with pytest.raises(RuntimeError, match=NEXT_STEP):
                await call()
        with pytest.raises(RuntimeError, match=NEXT_STEP):
            async with client.stream({}):
                pass
        go_to(1)
        await client.run({})
    assert confirming.cancelled_ids() == []


async def test_a_stream_that_a_fork_leaves_is_still_the_parents(
    service: ScriptedService, go_to: Callable[[int], None]
) -> None:
    for _ in range(2):
        service.on_run(Send(opening()), Hang())
    async with EnvClient(service.address) as client:
        stream = client.stream({}, request_id=A)
        await stream.__aenter__()
        await anext(stream)
        with SyncEnvClient(service.address) as plain:
            plain_stream = plain.stream({}, request_id="b" * 32).__enter__()
            next(plain_stream)
            go_to(2)
            with pytest.raises(RuntimeError, match=NEXT_STEP):
                await anext(stream)
            with pytest.raises(RuntimeError, match=NEXT_STEP):
                next(plain_stream)
            await stream.__aexit__(None, None, None)
            plain_stream.__exit__(None, None, None)
            go_to(1)
            assert service.cancelled_ids() == []
            plain_stream.abandon("the parent leaves it")
        stream.abandon("the parent leaves it")
    assert sorted(service.cancelled_ids()) == [A, "b" * 32]
    assert {cancel.cause for cancel in service.cancels} == {"the parent leaves it"}


MADE_BEFORE = """
import asyncio, os, sys
from env_client import EnvClient, SyncEnvClient
address, kind = sys.argv[1:]
client = (SyncEnvClient if kind == "sync" else EnvClient)(address, timeout=20)

async def run_async():
    async with client:
        return (await client.run({})).head.ok

def run():
    if kind == "async":
        return asyncio.run(run_async())
    with client:
        return client.run({}).head.ok

for _ in range(2):
    if os.fork() == 0:
        os._exit(0 if run() else 1)
print([os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)])
"""

USED_BEFORE = """
import os, sys
from env_client import SyncEnvClient
with SyncEnvClient(sys.argv[1], timeout=20) as client:
    client.run({})
    if os.fork() == 0:
        try:
            client.run({})
        except RuntimeError as error:
            print(str(error).rpartition("; ")[2], flush=True)
        client.close(1000)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
    print(client.run({}).head.ok)
"""


def in_a_process(script: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", script, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_made_before_a_fork_each_child_has_a_session_of_its_own(
    confirming: ScriptedService, kind: str
) -> None:
    replies(confirming, 2)
    assert in_a_process(MADE_BEFORE, confirming.address, kind) == "[0, 0]\n"
    sessions = confirming.sessions
    assert sessions is not None
    assert sorted(sessions.opens) == sorted((run.session_id, 1) for run in confirming.runs)
    assert len({run.session_id for run in confirming.runs}) == 2
    assert sessions.ends == ["goodbye"] * 2


def test_used_before_a_fork_the_child_is_told_and_the_parent_goes_on(confirming: ScriptedService) -> None:
    replies(confirming, 2)
    said = in_a_process(USED_BEFORE, confirming.address)
    assert said == "make the client after the fork\n0\nTrue\n"
    assert confirming.sessions is not None
    assert (len(confirming.sessions.opens), confirming.sessions.ends) == (1, ["goodbye"])
    assert confirming.cancelled_ids() == []
