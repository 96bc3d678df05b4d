"""A lane that is opened, or is not: then its runs travel by Run."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from envtrio.v1.env_service_pb2 import RunRequest

from env_client import EnvClient, EnvError, RunDeadlineError, UnavailableError, lane
from env_client.channels import open_aio_channel
from env_client.lane import Lane
from tests.helpers.deltas import episode_stream
from tests.helpers.scripted_end import End
from tests.helpers.scripted_lane import LaneLine
from tests.helpers.scripted_service import ScriptedService, Send

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

RUN = "0123456789abcdef0123456789abcdef"
GONE = End(grpc.StatusCode.UNAVAILABLE, "TABLE_FULL", "no room")
PLAIN = LaneLine(capabilities=("sessions",))


@contextlib.asynccontextmanager
async def lane_to(service: ScriptedService, **arguments: Any) -> AsyncIterator[Lane]:
    async with open_aio_channel(service.address, None) as channel:
        opened = Lane(channel, **arguments)
        yield opened
        await opened.close(5.0)


def replies(service: ScriptedService, times: int = 1, **arguments: Any) -> None:
    for _ in range(times):
        service.on_run(*[Send(message) for message in episode_stream()], **arguments)


def request() -> RunRequest:
    return RunRequest(request_id=RUN, task_json="{}")


def opened_runs(service: ScriptedService) -> int:
    """How many runs came in lanes."""
    return sum(kind == "open_run" for stream in service.lanes.streams for kind, _, _ in stream.frames)


async def until(service: ScriptedService, condition: Callable[[Any], bool]) -> None:
    await asyncio.to_thread(service.lanes.wait_until, condition)


async def test_a_server_without_sessions_is_not_asked_for_each_run(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "pause_seconds", lambda _: 0.0)
    asked = 0
    made = lane.LaneStream

    def counted(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return made(*arguments)

    monkeypatch.setattr(lane, "LaneStream", counted)
    replies(service, 30)
    async with EnvClient(service.address) as client:
        for _ in range(30):
            await client.run({})
    # Mostly once. gRPC may have a status of its own if the first frame fails because the call has ended.
    assert 1 <= asked < 15


async def test_a_server_that_carries_no_runs_is_asked_again_when_the_stream_broke(
    carrying: ScriptedService,
) -> None:
    carrying.on_lane(PLAIN)
    replies(carrying, 4)
    async with EnvClient(carrying.address) as client:
        await asyncio.gather(*[client.run({}) for _ in range(3)])
        await client.run({})
        assert (len(carrying.lanes.opens), opened_runs(carrying)) == (1, 0)
        carrying.lanes.streams[0].end(GONE)
        await until(carrying, lambda lanes: lanes.ends == ["lost"])
        await until_run_in_lane(client, carrying)
    (first, second) = carrying.lanes.opens
    assert (first[0], first[1] + 1) == second
    assert carrying.lanes.ends == ["lost", "goodbye"]


async def until_run_in_lane(client: EnvClient, service: ScriptedService) -> None:
    """Run until one travels in a lane: when the client hears of a stream's end is not known here."""
    for _ in range(1_000):
        replies(service, 1, optional=True)
        await client.run({})
        if opened_runs(service):
            return
    raise AssertionError("no run travels in a lane")


@pytest.mark.parametrize("ending", [GONE, End(grpc.StatusCode.UNAVAILABLE)])
async def test_a_stream_that_is_not_opened_is_tried_again_after_a_pause(
    carrying: ScriptedService, ending: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    carrying.on_lane(LaneLine(refuse=ending), LaneLine(refuse=ending))
    replies(carrying, 6)
    loop, late = asyncio.get_running_loop(), 0.0
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + late)
    # Only as long as it takes a run to be refused and to come by Run instead.
    monkeypatch.setattr(lane, "pause_seconds", lambda failures: 1_000.0 * failures)
    async with EnvClient(carrying.address) as client:
        for wait, opens, carried in (
            (0, 1, 0),
            (0, 1, 0),
            (1_001, 2, 0),
            (1_001, 2, 0),
            (1_001, 3, 1),
            (0, 3, 2),
        ):
            late += wait
            await client.run({})
            assert (len(carrying.lanes.opens), opened_runs(carrying)) == (opens, carried)
    assert [epoch for _, epoch in carrying.lanes.opens] == [1, 2, 3]


async def test_a_server_that_says_when_to_come_again_is_believed(
    carrying: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    carrying.on_lane(
        LaneLine(refuse=End(grpc.StatusCode.RESOURCE_EXHAUSTED, "TABLE_FULL", retry_seconds=500))
    )
    replies(carrying, 3)
    loop, late = asyncio.get_running_loop(), 0.0
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + late)
    async with EnvClient(carrying.address) as client:
        for wait, carried in ((0.0, 0), (490.0, 0), (20.0, 1)):
            late += wait
            await client.run({})
            assert opened_runs(carrying) == carried


async def test_a_server_that_has_no_sessions_may_have_them_later(
    carrying: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    carrying.on_lane(LaneLine(refuse=End(grpc.StatusCode.UNIMPLEMENTED)))
    replies(carrying, 4)
    loop, late = asyncio.get_running_loop(), 0.0
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + late)
    async with EnvClient(carrying.address) as client:
        for wait, carried in ((0.0, 0), (20.0, 0), (11.0, 1), (0.0, 2)):
            late += wait
            await client.run({})
            assert opened_runs(carrying) == carried


async def test_a_lane_that_is_closed_while_it_is_opened_sends_nothing(carrying: ScriptedService) -> None:
    opens = threading.Event()
    carrying.on_lane(LaneLine(opens=opens))
    async with lane_to(carrying) as opened:
        run = opened.carry(request(), None)
        await until(carrying, lambda lanes: len(lanes.opens) == 1)
        await opened.close(5.0)
        with pytest.raises(grpc.RpcError, match="the client was closed"):
            await run.read()
    opens.set()
    assert carrying.runs == []


async def test_a_server_that_does_not_open_it_in_time(carrying: ScriptedService) -> None:
    opens = threading.Event()
    carrying.on_lane(LaneLine(opens=opens))
    replies(carrying, 3)
    async with lane_to(carrying, open_seconds=0.2) as opened:
        runs = [opened.carry(request(), None) for _ in range(2)]
        for run in runs:
            while await run.read() is not grpc.aio.EOF:
                pass
        run = opened.carry(request(), None)  # Not asked again at once: each time would take as long.
        assert await run.read()
        run.cancel()
        opens.set()
    assert len(carrying.runs) == 3
    assert (len(carrying.lanes.opens), opened_runs(carrying)) == (1, 0)


async def test_nothing_is_sent_to_a_server_that_cannot_be_reached_and_that_is_said() -> None:
    client = EnvClient("127.0.0.1:1")
    for _ in range(2):
        with pytest.raises(
            UnavailableError, match=r"NOT_ADMITTED: not sent, .*no word from the server.*127\.0\.0\.1:1"
        ) as caught:
            await client.run({})
        assert caught.value.reason == "NOT_ADMITTED"
    await client.close(0.1)


async def test_a_big_request_travels_by_run(carrying: ScriptedService) -> None:
    replies(carrying, 2)
    async with EnvClient(carrying.address) as client:
        await client.run({"x": "y" * (1024 * 1024)})
        assert carrying.lanes.opens == []
        await client.run({"x": "y" * (1000 * 1024)})
    assert opened_runs(carrying) == 1


async def test_the_deadline_counts_while_it_is_opened(carrying: ScriptedService) -> None:
    opens = threading.Event()
    carrying.on_lane(LaneLine(opens=opens))
    replies(carrying)
    async with EnvClient(carrying.address) as client:
        with pytest.raises(RunDeadlineError, match=r"timeout of 0\.1 s"):
            await client.run({}, timeout=0.1)
        opens.set()
        await client.run({}, request_id=RUN)
    assert [run.request_id for run in carrying.runs] == [RUN]  # The first one never left.
    assert len(carrying.cancelled_ids()) == 1


async def test_a_run_that_is_left_while_it_is_opened_is_never_sent(carrying: ScriptedService) -> None:
    opens = threading.Event()
    carrying.on_lane(LaneLine(opens=opens))
    replies(carrying)
    async with EnvClient(carrying.address) as client:
        async with client.stream({}, request_id=RUN):
            await until(carrying, lambda lanes: len(lanes.opens) == 1)
        opens.set()
        await client.run({})
    assert RUN not in {run.request_id for run in carrying.runs}
    assert carrying.cancelled_ids() == [RUN]


async def test_closing_while_it_is_opened(carrying: ScriptedService) -> None:
    opens = threading.Event()
    carrying.on_lane(LaneLine(opens=opens))
    client = EnvClient(carrying.address)
    run = asyncio.ensure_future(client.run({}, request_id=RUN))
    await until(carrying, lambda lanes: len(lanes.opens) == 1)
    await client.close()
    with pytest.raises(EnvError, match="was abandoned"):
        await run
    opens.set()
    assert carrying.runs == []
    assert carrying.cancelled_ids() == [RUN]
