"""`run` returns only what is delivered for good, and says so when it cannot know; in either client."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from env_client import (
    DeliveryUncertainError,
    EnvClient,
    RunCancelledError,
    RunDeadlineError,
    SessionEndedError,
    SyncEnvClient,
    UnavailableError,
)
from tests.helpers.deltas import episode_stream, opening
from tests.helpers.scripted_end import End
from tests.helpers.scripted_service import Hang, ScriptedService, Send
from tests.helpers.scripted_session import DISCARDED, WORKER_LOST, ScriptedSession, SessionLine

if TYPE_CHECKING:
    from envtrio.v1.episode_pb2 import Episode


RUN = "0123456789abcdef0123456789abcdef"
TRANSPORTS = ("run", "lane")
GONE = End(grpc.StatusCode.UNAVAILABLE)
SECONDS = 20


def sessions_of(service: ScriptedService) -> ScriptedSession:
    assert service.sessions is not None
    return service.sessions


def replies(service: ScriptedService, times: int = 1) -> None:
    for _ in range(times):
        service.on_run(*[Send(message) for message in episode_stream()])


def run_sync(service: ScriptedService, **arguments: Any) -> Episode:
    with SyncEnvClient(service.address) as client:
        return client.run({}, request_id=RUN, **arguments)


async def each_client(service: ScriptedService, kind: str, **arguments: Any) -> Episode:
    if kind == "sync":
        return await asyncio.to_thread(run_sync, service, **arguments)
    async with EnvClient(service.address) as client:
        return await client.run({}, request_id=RUN, **arguments)


both = pytest.mark.parametrize("kind", ["async", "sync"])


async def test_returns_only_when_the_confirmation_was_answered(confirming: ScriptedService) -> None:
    held, sessions = threading.Event(), sessions_of(confirming)
    confirming.on_session(SessionLine(held=held))
    replies(confirming)
    async with EnvClient(confirming.address) as client:
        # The run itself, for closing the client waits for the answer too.
        run = asyncio.create_task(client.run({}, request_id=RUN))
        await asyncio.to_thread(sessions.wait_until, lambda came: came.frames == [[RUN]])
        for _ in range(20):  # As often as a run that had its answer would be woken until it returns.
            await asyncio.sleep(0)
        assert not run.done()
        held.set()
        assert (await run).head.ok
    assert confirming.cancelled_ids() == []
    assert confirming.runs[0].session_id == sessions.opens[0][0]
    assert sessions.ends == ["goodbye"]


async def test_a_stream_ends_only_when_the_confirmation_was_answered(confirming: ScriptedService) -> None:
    held, sessions = threading.Event(), sessions_of(confirming)
    confirming.on_session(SessionLine(held=held))
    replies(confirming)
    async with EnvClient(confirming.address) as client, client.stream({}, request_id=RUN) as stream:
        assert [(await anext(stream)).seq for _ in range(3)] == [0, 1, 2]
        end = asyncio.ensure_future(anext(stream, None))
        await asyncio.to_thread(sessions.wait_until, lambda came: came.frames == [[RUN]])
        assert stream.episode is None
        held.set()
        assert await end is None
        assert stream.episode is await stream.result()
    assert confirming.cancelled_ids() == []


@both
async def test_what_was_taken_back_is_not_delivered(confirming: ScriptedService, kind: str) -> None:
    confirming.on_session(SessionLine(answering=lambda _: DISCARDED))
    replies(confirming)
    with pytest.raises(RunCancelledError, match="run 01234567: its episode was taken back") as caught:
        await each_client(confirming, kind)
    assert caught.value.request_id == RUN
    assert confirming.cancelled_ids() == []  # The server has settled it.


@both
async def test_of_a_lost_worker_nobody_can_say(confirming: ScriptedService, kind: str) -> None:
    confirming.on_session(SessionLine(answering=lambda _: WORKER_LOST))
    replies(confirming)
    with pytest.raises(DeliveryUncertainError, match="its worker is lost") as caught:
        await each_client(confirming, kind)
    assert len(caught.value.episode.traces[0].nodes) == 3
    assert (caught.value.reason, caught.value.request_id) == ("WORKER_LOST", RUN)
    assert confirming.cancelled_ids() == []  # The caller has the episode, and may fetch its arrays.


@both
async def test_without_an_answer_nobody_can_say(kind: str) -> None:
    with ScriptedService(late_cancel_seconds=0.2, sessions=True) as service:
        service.on_session(SessionLine(answering=lambda _: None))
        replies(service)
        with pytest.raises(DeliveryUncertainError, match="no answer came within the window") as caught:
            await each_client(service, kind)
        assert caught.value.episode.head.ok
        assert service.cancelled_ids() == []


@both
async def test_an_outage_costs_nothing_but_time(confirming: ScriptedService, kind: str) -> None:
    confirming.on_session(SessionLine(breaks=GONE), SessionLine(refuse=GONE))
    replies(confirming)
    assert (await each_client(confirming, kind)).head.ok
    session_id = confirming.runs[0].session_id
    assert sessions_of(confirming).opens == [(session_id, epoch) for epoch in (1, 2, 3)]
    assert sessions_of(confirming).frames == [[RUN]] * 2


@both
async def test_a_session_that_was_ended_for_good(confirming: ScriptedService, kind: str) -> None:
    confirming.on_session(SessionLine(breaks=End(grpc.StatusCode.ABORTED, "SESSION_SUPERSEDED")))
    replies(confirming)
    with pytest.raises(DeliveryUncertainError, match="the server ended it for good") as caught:
        await each_client(confirming, kind)
    assert isinstance(caught.value.__cause__, SessionEndedError)
    assert caught.value.reason == "SESSION_SUPERSEDED"


async def test_after_a_session_was_ended_for_good_nothing_is_sent(confirming: ScriptedService) -> None:
    confirming.on_session(SessionLine(breaks=End(grpc.StatusCode.ABORTED, "SESSION_SUPERSEDED")))
    replies(confirming)
    async with EnvClient(confirming.address) as client:
        with pytest.raises(DeliveryUncertainError):
            await client.run({})
        with pytest.raises(SessionEndedError, match="make a new client"):
            await client.run({})
    assert len(confirming.runs) == 1
    assert confirming.cancelled_ids() == []


@both
async def test_a_server_without_sessions_delivers_as_before(service: ScriptedService, kind: str) -> None:
    replies(service)
    assert (await each_client(service, kind)).head.ok
    assert service.cancelled_ids() == []


@both
async def test_the_deadline_counts_until_the_answer(confirming: ScriptedService, kind: str) -> None:
    confirming.on_session(SessionLine(answering=lambda _: None))
    replies(confirming)
    with pytest.raises(RunDeadlineError, match=r"timeout of 0\.3 s"):
        await each_client(confirming, kind, timeout=0.3)
    assert confirming.cancelled_ids() == [RUN]


async def test_closing_the_client_takes_back_what_is_not_confirmed(confirming: ScriptedService) -> None:
    confirming.on_session(SessionLine(answering=lambda _: None))
    replies(confirming)
    client, sessions = EnvClient(confirming.address), sessions_of(confirming)
    task = asyncio.create_task(client.run({}, request_id=RUN))
    await asyncio.to_thread(sessions.wait_until, lambda came: came.frames == [[RUN]])
    await client.close()
    with pytest.raises(RunCancelledError, match="was abandoned"):
        await task
    assert confirming.cancelled_ids() == [RUN]
    assert sessions.ends == ["goodbye"]


async def test_closing_the_client_is_bounded(confirming: ScriptedService) -> None:
    confirming.on_session(SessionLine(parts=False))
    replies(confirming)
    client = EnvClient(confirming.address)
    await client.run({})
    await client.close(0.1)  # Its goodbye is not answered before the service is torn down.


def test_closing_the_synchronous_client_under_a_run(confirming: ScriptedService) -> None:
    confirming.on_session(SessionLine(answering=lambda _: None))
    replies(confirming)
    with ThreadPoolExecutor(1) as threads, SyncEnvClient(confirming.address) as client:
        run = threads.submit(client.run, {}, request_id=RUN)
        sessions_of(confirming).wait_until(lambda came: came.frames == [[RUN]])
        client.close(0.1)
        with pytest.raises(DeliveryUncertainError, match="before the client was closed"):
            run.result(SECONDS)


async def test_a_run_does_not_wait_for_the_session(confirming: ScriptedService) -> None:
    opens = threading.Event()
    confirming.on_session(SessionLine(opens=opens))
    confirming.on_run(End(grpc.StatusCode.UNAVAILABLE, "DRAINING"))
    async with EnvClient(confirming.address) as client:
        with pytest.raises(UnavailableError):
            await client.run({})
        opens.set()


async def test_many_runs_are_confirmed_in_few_frames(confirming: ScriptedService) -> None:
    opens, count = threading.Event(), 24
    confirming.on_session(SessionLine(opens=opens))
    replies(confirming, count)
    reached = 0
    all_there = asyncio.Event()

    def seen(delta: Any) -> None:
        nonlocal reached
        reached += delta.seq == 2
        if reached == count:
            all_there.set()

    async with EnvClient(confirming.address) as client:
        runs = [asyncio.create_task(client.run({}, on_delta=seen)) for _ in range(count)]
        await all_there.wait()
        opens.set()
        await asyncio.gather(*runs)
    sessions = sessions_of(confirming)
    assert sorted(sessions.confirmed_ids()) == sorted(run.request_id for run in confirming.runs)
    assert len(sessions.frames) < count


async def test_cancels_and_session_share_a_connection(confirming: ScriptedService) -> None:
    confirming.on_run(Send(opening()), Hang())
    async with EnvClient(confirming.address) as client, client.stream({}) as stream:
        await anext(stream)
    assert confirming.peers == sessions_of(confirming).peers
