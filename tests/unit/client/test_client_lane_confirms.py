"""Confirmations in a lane: quick where it answers, and left to the session in every other case."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import grpc
import pytest
from envtrio.v1 import env_service_pb2 as pb

from env_client import DeliveryUncertainError, EnvClient, RunCancelledError, intake, stream
from tests.helpers.deltas import episode_stream
from tests.helpers.scripted_end import End
from tests.helpers.scripted_lane import LaneLine
from tests.helpers.scripted_service import ScriptedService, Send

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.scripted_lane import ScriptedLanes

RUN = "0123456789abcdef0123456789abcdef"
BIG = 200_000  # Tokens: more than 1 MiB a message.


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is told decides, never the time."""
    monkeypatch.setattr(stream, "_LANE_SECONDS", 60.0)


def replies(service: ScriptedService) -> None:
    service.on_run(*[Send(message) for message in episode_stream()])


def in_session(service: ScriptedService) -> list[str]:
    assert service.sessions is not None
    return service.sessions.confirmed_ids()


async def until(service: ScriptedService, condition: Callable[[ScriptedLanes], bool]) -> None:
    await asyncio.to_thread(service.lanes.wait_until, condition)


@pytest.mark.usefixtures("patient")
async def test_it_is_the_last_word_and_the_session_is_not_asked(carrying: ScriptedService) -> None:
    carrying.lanes.outcome = pb.CONFIRM_OUTCOME_CONFIRMED
    replies(carrying)
    async with EnvClient(carrying.address) as client:
        episode = await client.run({}, request_id=RUN)
    assert len(episode.traces[0].nodes) == 3
    assert carrying.lanes.confirmed == [RUN]
    assert in_session(carrying) == []
    assert carrying.cancelled_ids() == []


@pytest.mark.usefixtures("patient")
async def test_what_was_taken_back_is_not_delivered(carrying: ScriptedService) -> None:
    carrying.lanes.outcome = pb.CONFIRM_OUTCOME_DISCARDED
    replies(carrying)
    async with EnvClient(carrying.address) as client:
        with pytest.raises(RunCancelledError, match="taken back"):
            await client.run({}, request_id=RUN)
    assert in_session(carrying) == []


@pytest.mark.usefixtures("patient")
async def test_a_lost_worker_leaves_it_uncertain(carrying: ScriptedService) -> None:
    carrying.lanes.outcome = pb.CONFIRM_OUTCOME_WORKER_LOST
    replies(carrying)
    async with EnvClient(carrying.address) as client:
        with pytest.raises(DeliveryUncertainError, match="worker is lost") as raised:
            await client.run({}, request_id=RUN)
    assert len(raised.value.episode.traces) == 1
    assert in_session(carrying) == []


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("outcome", [pb.CONFIRM_OUTCOME_UNKNOWN, pb.CONFIRM_OUTCOME_UNSPECIFIED])
async def test_what_is_no_last_word_is_left_to_the_session(
    carrying: ScriptedService, outcome: pb.ConfirmOutcome.ValueType
) -> None:
    carrying.lanes.outcome = outcome
    replies(carrying)
    async with EnvClient(carrying.address) as client:
        await client.run({}, request_id=RUN)
    assert carrying.lanes.confirmed == [RUN]
    assert in_session(carrying) == [RUN]


async def test_silence_is_left_to_the_session(
    carrying: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_LANE_SECONDS", 0.05)
    carrying.lanes.outcome = None
    replies(carrying)
    async with EnvClient(carrying.address) as client:
        await client.run({}, request_id=RUN)
    assert in_session(carrying) == [RUN]


@pytest.mark.usefixtures("patient")
async def test_a_stream_that_breaks_leaves_it_to_the_session(carrying: ScriptedService) -> None:
    carrying.lanes.outcome = None
    replies(carrying)
    async with EnvClient(carrying.address) as client:
        run = asyncio.create_task(client.run({}, request_id=RUN))
        await until(carrying, lambda lanes: lanes.confirmed == [RUN])
        carrying.lanes.streams[0].end(End(grpc.StatusCode.UNAVAILABLE, "WORKER_LOST", "gone"))
        await run
    assert in_session(carrying) == [RUN]


@pytest.mark.usefixtures("patient")
async def test_a_lane_that_carries_no_runs_is_not_asked(carrying: ScriptedService) -> None:
    carrying.lanes.lines.append(LaneLine(capabilities=("sessions",)))
    replies(carrying)
    async with EnvClient(carrying.address) as client:
        await client.run({}, request_id=RUN)
    assert carrying.lanes.confirmed == []
    assert in_session(carrying) == [RUN]


@pytest.mark.usefixtures("patient")
async def test_a_caller_that_leaves_while_it_is_asked_owes_a_cancel(carrying: ScriptedService) -> None:
    carrying.lanes.outcome = None
    replies(carrying)
    async with EnvClient(carrying.address) as client:
        run = asyncio.create_task(client.run({}, request_id=RUN))
        await until(carrying, lambda lanes: lanes.confirmed == [RUN])
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert carrying.cancelled_ids() == [RUN]
    assert in_session(carrying) == []


@pytest.mark.usefixtures("patient")
async def test_closing_the_client_ends_the_wait(carrying: ScriptedService) -> None:
    carrying.lanes.outcome = None
    replies(carrying)
    async with EnvClient(carrying.address) as client:
        run = asyncio.create_task(client.run({}, request_id=RUN))
        await until(carrying, lambda lanes: lanes.confirmed == [RUN])
    with pytest.raises(RunCancelledError, match="closed"):
        await run
    assert carrying.cancelled_ids() == [RUN]


@pytest.mark.usefixtures("patient")
async def test_a_run_that_was_abandoned_while_it_was_checked_is_not_confirmed(
    carrying: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    carrying.lanes.outcome = pb.CONFIRM_OUTCOME_CONFIRMED
    carrying.on_run(*[Send(message) for message in episode_stream(1, count=BIG)])
    loop = asyncio.get_running_loop()
    checking, go_on = asyncio.Event(), threading.Event()

    def slow_check(_episode: object) -> None:
        loop.call_soon_threadsafe(checking.set)
        assert go_on.wait(20)

    monkeypatch.setattr(intake, "check_episode", slow_check)
    async with EnvClient(carrying.address) as client, client.stream({}, request_id=RUN) as left:
        result = asyncio.create_task(left.result())
        await checking.wait()
        left.abandon("nobody wants it")
        go_on.set()
        with pytest.raises(RunCancelledError):
            await result
    assert carrying.lanes.confirmed == []
    assert carrying.cancelled_ids() == [RUN]
