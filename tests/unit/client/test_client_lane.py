"""Runs in a lane: how they share its stream, and how it is parted from."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from env_client import EnvClient, EnvError, RunDeadlineError, lane_stream
from env_client.lane_frames import INITIAL_CREDIT, decoded
from tests.helpers.deltas import episode_stream, growth, opening, reply
from tests.helpers.scripted_end import End
from tests.helpers.scripted_lane import LaneLine
from tests.helpers.scripted_service import Hang, Reach, ScriptedService, Send

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = "0123456789abcdef0123456789abcdef"
GONE = End(grpc.StatusCode.UNAVAILABLE, "TABLE_FULL", "no room")
PLAIN = LaneLine(capabilities=("sessions",))


def replies(service: ScriptedService, times: int = 1, **arguments: Any) -> None:
    for _ in range(times):
        service.on_run(*[Send(message) for message in episode_stream()], **arguments)


def opened_runs(service: ScriptedService) -> int:
    """How many runs came in lanes."""
    return sum(kind == "open_run" for stream in service.lanes.streams for kind, _, _ in stream.frames)


async def until(service: ScriptedService, condition: Callable[[Any], bool]) -> None:
    await asyncio.to_thread(service.lanes.wait_until, condition)


async def test_all_runs_share_one_stream_of_a_session_of_its_own(carrying: ScriptedService) -> None:
    replies(carrying, 40)
    async with EnvClient(carrying.address) as client:
        first = await client.run({})
        others = await asyncio.gather(*[client.run({}) for _ in range(39)])
    assert {len(episode.traces[0].nodes) for episode in (first, *others)} == {3}
    ((lane_id, epoch),) = carrying.lanes.opens
    assert (len(lane_id), epoch) == (32, 1)
    assert lane_id not in {run.session_id for run in carrying.runs}
    assert len({run.session_id for run in carrying.runs}) == 1
    (stream,) = carrying.lanes.streams
    frames = [frame for frame in stream.frames if frame[0] != "goodbye"]
    assert frames == [("open_run", number, INITIAL_CREDIT) for number in range(1, 41)]
    assert max(stream.batches) > 1
    assert carrying.lanes.ends == ["goodbye"]
    assert carrying.cancelled_ids() == []


async def test_it_costs_no_task_a_run(carrying: ScriptedService) -> None:
    for _ in range(21):
        carrying.on_run(Send(opening()), Hang())
    async with EnvClient(carrying.address) as client, contextlib.AsyncExitStack() as stack:
        counts = []
        for _ in range(21):
            stream = await stack.enter_async_context(client.stream({}))
            await anext(stream)
            counts.append(len(asyncio.all_tasks()))
        assert counts == counts[:1] * 21


async def test_a_deadline_that_nobody_waits_for_ends_the_run_as_well(carrying: ScriptedService) -> None:
    carrying.on_run(Send(opening()), Hang())
    async with EnvClient(carrying.address) as client, client.stream({}, timeout=0.3) as stream:
        await anext(stream)
        await until(carrying, lambda lanes: ("leave_run", 1, 0) in lanes.streams[0].frames)
        with pytest.raises(RunDeadlineError, match=r"0\.3 s"):
            await anext(stream)
    timeout = carrying.run_timeouts[0]
    assert timeout is not None
    assert 0.0 < timeout <= 0.301


async def test_a_run_is_sent_without_being_read(carrying: ScriptedService) -> None:
    reached = threading.Event()
    for line in (PLAIN, LaneLine()):
        carrying.on_lane(line)
        carrying.on_run(Reach(reached), Hang())
        async with EnvClient(carrying.address) as client, client.stream({}):
            assert await asyncio.to_thread(reached.wait, 20)
        reached.clear()
    assert opened_runs(carrying) == 1


async def test_a_caller_that_does_not_read_holds_up_no_other(carrying: ScriptedService) -> None:
    big = 40_000  # Tokens: some 480 KiB a message.
    messages = [opening(), *(growth(seq, count=big) for seq in range(1, 6))]
    stuck = threading.Event()
    carrying.on_run(
        *[Send(message) for message in messages[:2]],
        Reach(stuck),
        *map(Send, messages[2:]),
        Send(reply(*messages)),
    )
    replies(carrying, 20, script="other")
    async with EnvClient(carrying.address) as client, client.stream({}) as stream:
        assert await asyncio.to_thread(stuck.wait, 20)
        await asyncio.gather(*[client.run({"script": "other"}) for _ in range(20)])
        credits = [frame for frame in carrying.lanes.streams[0].frames if frame[0] == "run_credit"]
        assert credits == []
        episode = await stream.result()
    assert [len(node.mask) for node in episode.traces[0].nodes] == [2, *[big] * 5]
    credits = [frame for frame in carrying.lanes.streams[0].frames if frame[0] == "run_credit"]
    assert 2 <= len(credits) <= 5


async def test_big_messages_are_decoded_off_the_event_loop(
    carrying: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[tuple[bool, bool]] = []
    here = threading.current_thread()

    def watched(message: bytes) -> Any:
        threads.append((len(message) > 1024 * 1024, threading.current_thread() is here))
        return decoded(message)

    monkeypatch.setattr(lane_stream, "decoded", watched)
    messages = [opening(), growth(1, count=200_000), growth(2)]
    carrying.on_run(*[Send(message) for message in messages], Send(reply(*messages)))
    async with EnvClient(carrying.address) as client:
        await client.run({})
    assert set(threads) == {(True, False), (False, True)}


async def test_closing_is_bounded(carrying: ScriptedService) -> None:
    carrying.on_lane(LaneLine(parts=False))
    replies(carrying)
    loop = asyncio.get_running_loop()
    client = EnvClient(carrying.address)
    await client.run({})
    before = loop.time()
    await client.close(0.2)
    assert loop.time() - before < 4.0
    assert carrying.lanes.streams[0].said_goodbye


async def test_what_is_open_is_left_before_the_goodbye(carrying: ScriptedService) -> None:
    carrying.on_run(Send(opening()), Hang())
    client = EnvClient(carrying.address)
    run = asyncio.ensure_future(client.run({}, request_id=RUN))
    await until(carrying, lambda lanes: lanes.streams and lanes.streams[0].frames)
    await client.close()
    with pytest.raises(EnvError, match="was abandoned"):
        await run
    kinds = [kind for kind, _, _ in carrying.lanes.streams[0].frames]
    assert kinds == ["open_run", "leave_run", "goodbye"]
    assert carrying.lanes.ends == ["goodbye"]
