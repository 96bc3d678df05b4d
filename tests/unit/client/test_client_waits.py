"""While a run waits for the answer to its confirmation: what blocks it, what ends it, and what does not."""

from __future__ import annotations

import asyncio
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from env_client import EnvClient, SyncEnvClient, sync_stream
from env_client.channels import open_sync_channel
from env_client.session import Session
from tests.helpers.deltas import episode_stream
from tests.helpers.scripted_end import End
from tests.helpers.scripted_service import Reach, ScriptedService, Send, Wait
from tests.helpers.scripted_session import ScriptedSession, SessionLine

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_client.session_driver import Settlement, Ticket

RUN = "0123456789abcdef0123456789abcdef"
TRANSPORTS = ("run", "lane")
GONE = End(grpc.StatusCode.UNAVAILABLE)
SECONDS = 20


def sessions_of(service: ScriptedService) -> ScriptedSession:
    assert service.sessions is not None
    return service.sessions


def replies(service: ScriptedService) -> None:
    service.on_run(*[Send(message) for message in episode_stream()])


class WatchedSession(Session):
    """Tells when a confirmation was asked for, and when it was settled."""

    def __init__(self, service: ScriptedService) -> None:
        super().__init__(lambda: open_sync_channel(service.address, None))
        self.asked, self.settled = asyncio.Event(), threading.Event()

    def confirm(self, request_id: str, settle: Callable[[Settlement], object]) -> Ticket:
        def noted(settlement: Settlement) -> None:
            settle(settlement)
            self.settled.set()

        ticket = super().confirm(request_id, noted)
        self.asked.set()
        return ticket


def test_the_synchronous_client_returns_only_when_the_confirmation_was_answered(
    confirming: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, sessions = threading.Event(), sessions_of(confirming)
    confirming.on_session(SessionLine(held=held))
    replies(confirming)
    stands = threading.Event()  # The run waits for its answer, or has returned: one of them must come.

    class Watched(queue.SimpleQueue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            if self.empty():
                stands.set()
            return super().get(block, timeout)

    monkeypatch.setattr(sync_stream, "queue", SimpleNamespace(SimpleQueue=Watched, Empty=queue.Empty))
    with ThreadPoolExecutor(1) as threads, SyncEnvClient(confirming.address) as client:
        run = threads.submit(client.run, {}, request_id=RUN)
        run.add_done_callback(lambda _: stands.set())
        assert stands.wait(SECONDS)
        assert not run.done()
        sessions.wait_until(lambda came: came.frames == [[RUN]])
        held.set()
        assert run.result(SECONDS).head.ok
    assert confirming.cancelled_ids() == []


@pytest.mark.parametrize("has_left", [False, True], ids=["before it left", "after it left"])
async def test_cancelled_while_it_waits_for_the_answer(confirming: ScriptedService, has_left: bool) -> None:
    opens, held, sessions = threading.Event(), threading.Event(), sessions_of(confirming)
    confirming.on_session(SessionLine(opens=opens, held=held))
    replies(confirming)
    session = WatchedSession(confirming)
    async with EnvClient(confirming.address, session=session) as client:
        task = asyncio.create_task(client.run({}, request_id=RUN))
        await session.asked.wait()
        if has_left:
            opens.set()
            await asyncio.to_thread(sessions.wait_until, lambda came: came.frames == [[RUN]])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        opens.set()
        await asyncio.to_thread(confirming.wait_for_cancels, 1)
        held.set()
    assert confirming.cancelled_ids() == [RUN]
    assert sessions.confirmed_ids() == [RUN] * has_left
    assert sessions.ends == ["goodbye"]


async def test_the_session_lives_while_the_event_loop_is_blocked(confirming: ScriptedService) -> None:
    confirming.on_session(SessionLine(breaks=GONE), SessionLine(refuse=GONE))
    replies(confirming)
    sessions = sessions_of(confirming)
    async with EnvClient(confirming.address) as client:
        task = asyncio.create_task(client.run({}, request_id=RUN))
        await asyncio.to_thread(sessions.wait_until, lambda came: bool(came.frames))
        # Not in a thread: nothing else runs on this loop until the repeated confirmation has come.
        sessions.wait_until(lambda came: came.frames == [[RUN]] * 2)
        assert (await task).head.ok


async def test_the_event_loop_is_blocked_while_reply_and_confirmation_are_on_the_way(
    confirming: ScriptedService,
) -> None:
    blocked, replied = threading.Event(), threading.Event()
    first, *rest = [Send(message) for message in episode_stream()]
    confirming.on_run(first, Wait(blocked), *rest, Reach(replied))
    session = WatchedSession(confirming)

    def block(delta: Any) -> None:
        if delta.seq == 0:
            blocked.set()
            assert replied.wait(SECONDS)  # On the loop: it reads nothing until the whole reply has left.

    def block_again() -> None:
        assert session.settled.wait(SECONDS)  # Nor is it woken until the answer is there.

    async with EnvClient(confirming.address, session=session) as client:
        run = asyncio.create_task(client.run({}, request_id=RUN, on_delta=block))
        await session.asked.wait()
        block_again()
        assert not run.done()
        assert (await run).head.ok
    assert confirming.cancelled_ids() == []
    assert sessions_of(confirming).frames == [[RUN]]
