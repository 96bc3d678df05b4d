"""A lane that breaks or is sent nonsense: what becomes of its runs, and what is owed for them."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from envtrio.v1 import env_service_pb2 as pb
from grpc.aio._call import StreamStreamCall

from env_client import DrainingError, EnvClient, EnvError, InternalError, UnavailableError
from env_client.lane_run import LaneRun
from tests.helpers.deltas import episode_stream, opening
from tests.helpers.scripted_end import End
from tests.helpers.scripted_lane import LaneLine
from tests.helpers.scripted_service import Hang, Reach, ScriptedService, Send, Wait

if TYPE_CHECKING:
    from tests.helpers.scripted_lane import ScriptedLane

RUN = "0123456789abcdef0123456789abcdef"
DRAINED = End(grpc.StatusCode.UNAVAILABLE, "DRAINING", "the scripted end")
BROKEN = End(grpc.StatusCode.ABORTED, "SESSION_SUPERSEDED", "the scripted end")


def replies(service: ScriptedService, **arguments: Any) -> None:
    service.on_run(*[Send(message) for message in episode_stream()], **arguments)


async def the_stream(service: ScriptedService) -> ScriptedLane:
    """The newest one, when its first run has come."""
    await asyncio.to_thread(
        service.lanes.wait_until, lambda lanes: bool(lanes.streams) and bool(lanes.streams[-1].frames)
    )
    return service.lanes.streams[-1]


async def test_when_it_breaks_each_of_its_runs_hears_why_and_the_next_opens_it_anew(
    carrying: ScriptedService,
) -> None:
    reached = [threading.Event() for _ in range(3)]
    for event in reached:
        carrying.on_run(Send(opening()), Reach(event), Hang())
    async with EnvClient(carrying.address) as client:
        runs = [asyncio.ensure_future(client.run({})) for _ in reached]
        for event in reached:
            assert await asyncio.to_thread(event.wait, 20)
        carrying.lanes.streams[0].end(BROKEN)
        for run in runs:
            with pytest.raises(
                UnavailableError, match="this run broke: ABORTED SESSION_SUPERSEDED: the scripted"
            ) as caught:
                await run
            assert caught.value.reason == ""  # That was said of the stream, and not of the run.
        replies(carrying)
        await client.run({}, request_id=RUN)
    assert sorted(carrying.cancelled_ids()) == sorted(run.request_id for run in carrying.runs[:3])
    (first, second) = carrying.lanes.opens
    assert second == (first[0], 2)
    assert carrying.lanes.ends == ["lost", "goodbye"]


@pytest.mark.parametrize("end", [None, BROKEN], ids=["OK", "broken"])
@pytest.mark.parametrize("data", [0, 1, 4], ids=["before its data", "between its data", "after the reply"])
async def test_a_run_without_an_end_is_not_delivered_whatever_came_of_it(
    carrying: ScriptedService, end: End | None, data: int
) -> None:
    reached = threading.Event()
    carrying.on_run(*[Send(message) for message in episode_stream()[:data]], Reach(reached), Hang())
    async with EnvClient(carrying.address) as client:
        run = asyncio.ensure_future(client.run({}, request_id=RUN))
        assert await asyncio.to_thread(reached.wait, 20)
        (await the_stream(carrying)).end(end)
        with pytest.raises(UnavailableError, match=r"no word of it from the server.*this run broke: "):
            await run
    assert carrying.cancelled_ids() == [RUN]


async def test_when_its_server_stops_what_has_not_begun_was_refused_and_the_rest_is_uncertain(
    carrying: ScriptedService,
) -> None:
    begun, come = threading.Event(), threading.Event()
    carrying.on_run(Send(opening()), Reach(begun), Hang())
    carrying.on_run(Reach(come), Hang())
    async with EnvClient(carrying.address) as client, client.stream({}, request_id=RUN) as stream:
        await anext(stream)
        other = asyncio.ensure_future(client.run({}))
        assert await asyncio.to_thread(come.wait, 20)
        carrying.lanes.streams[0].end(DRAINED)
        with pytest.raises(DrainingError, match="UNAVAILABLE DRAINING: the scripted end") as refused:
            await other
        assert refused.value.reason == "DRAINING"
        with pytest.raises(UnavailableError, match="this run broke: UNAVAILABLE DRAINING: the scr") as caught:
            await anext(stream)
        assert caught.value.reason == ""
    assert carrying.cancelled_ids() == [RUN]


async def test_a_run_that_was_admitted_has_begun_whatever_its_server_says_at_its_end(
    carrying: ScriptedService,
) -> None:
    come = threading.Event()
    carrying.on_run(Reach(come), Hang())
    async with EnvClient(carrying.address) as client:
        run = asyncio.ensure_future(client.run({}, request_id=RUN))
        assert await asyncio.to_thread(come.wait, 20)
        stream = await the_stream(carrying)
        [(kind, number, _)] = stream.frames
        assert kind == "open_run"
        stream.send(run_admitted=pb.RunAdmitted(run_number=number))
        stream.end(DRAINED)
        with pytest.raises(UnavailableError, match="this run broke: UNAVAILABLE DRAINING") as caught:
            await run
        assert caught.value.reason == ""
    assert carrying.cancelled_ids() == [RUN]


async def test_a_server_that_stops_before_it_opens_the_stream_has_refused_its_runs(
    carrying: ScriptedService,
) -> None:
    carrying.on_lane(LaneLine(refuse=DRAINED))
    async with EnvClient(carrying.address) as client:
        runs = await asyncio.gather(*(client.run({}) for _ in range(3)), return_exceptions=True)
        assert [getattr(run, "reason", run) for run in runs] == ["DRAINING"] * 3
    assert carrying.runs == []
    assert carrying.cancels == []


async def test_a_status_that_grpc_hides_is_found(
    carrying: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    come, read = threading.Event(), StreamStreamCall.read

    async def hiding(call: Any) -> Any:
        try:
            return await read(call)
        except grpc.aio.AioRpcError:
            call._cython_call.set_internal_error("as where a message is being written")
            return await read(call)

    monkeypatch.setattr(StreamStreamCall, "read", hiding)
    carrying.on_run(Reach(come), Hang())
    async with EnvClient(carrying.address) as client:
        run = asyncio.ensure_future(client.run({}))
        assert await asyncio.to_thread(come.wait, 20)
        carrying.lanes.streams[0].end(DRAINED)
        with pytest.raises(DrainingError, match="the scripted end"):
            await run


async def test_a_reply_counts_only_with_the_end(carrying: ScriptedService) -> None:
    reached, go_on = threading.Event(), threading.Event()
    carrying.on_run(*[Send(message) for message in episode_stream()], Reach(reached), Wait(go_on))
    async with EnvClient(carrying.address) as client, client.stream({}) as stream:
        assert await asyncio.to_thread(reached.wait, 20)
        assert [(await anext(stream)).seq for _ in range(3)] == [0, 1, 2]
        end = asyncio.ensure_future(anext(stream, None))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not end.done()
        go_on.set()
        assert await end is None
        assert stream.episode is not None


def nonsense(number: int, other: int) -> list[dict[str, Any]]:
    return [
        {"run_data": pb.RunData(run_number=99, data=b"\xff")},
        {"run_data": pb.RunData(run_number=0, data=b"\xff")},
        {"run_data": pb.RunData(run_number=other, data=b"\xff")},
        {"run_data": pb.RunData(run_number=number)},
        {"end_run": pb.EndRun(run_number=99)},
        {"end_run": pb.EndRun(run_number=other, code=13)},
        {"run_admitted": pb.RunAdmitted(run_number=number)},
        {"run_admitted": pb.RunAdmitted(run_number=99)},
        {"confirm_answers": pb.ConfirmAnswers(answers=[pb.ConfirmAnswer(request_id=RUN)])},
        {"opened": pb.SessionOpened()},
        {},
    ]


async def test_what_means_nothing_is_ignored(carrying: ScriptedService) -> None:
    first, *rest = [Send(message) for message in episode_stream()]
    go_on = threading.Event()
    carrying.on_run(first, Hang())
    carrying.on_run(first, Wait(go_on), *rest)
    async with EnvClient(carrying.address) as client:
        async with client.stream({}, request_id=RUN) as left:
            await anext(left)
        async with client.stream({}) as stream:
            await anext(stream)
            for frame in nonsense(2, 1):
                carrying.lanes.streams[0].send(**frame)
            carrying.lanes.streams[0].send_raw(b"\x7a\x01x")  # A field of a later version.
            go_on.set()
            assert len((await stream.result()).traces[0].nodes) == 3
    assert carrying.cancelled_ids() == [RUN]
    assert carrying.lanes.ends == ["goodbye"]


async def test_what_cannot_be_decoded_ends_it(carrying: ScriptedService) -> None:
    for noise in (b"\xff", b"\xff" * 300_000):
        carrying.on_run(Send(opening()), Hang())
        async with EnvClient(carrying.address) as client, client.stream({}, request_id=RUN) as stream:
            await anext(stream)
            carrying.lanes.streams[-1].send_raw(noise)
            with pytest.raises(InternalError, match="this run broke: what the server sent cannot be decoded"):
                await anext(stream)
            replies(carrying)
            await client.run({})
    assert carrying.cancelled_ids() == [RUN] * 2
    assert carrying.lanes.ends == ["lost", "goodbye"] * 2


async def test_a_server_that_sends_more_of_a_run_than_it_may_loses_that_run_alone(
    carrying: ScriptedService,
) -> None:
    first, *rest = [Send(message) for message in episode_stream()]
    go_on = threading.Event()
    carrying.on_run(first, Hang())
    carrying.on_run(first, Wait(go_on), *rest)
    async with (
        EnvClient(carrying.address) as client,
        client.stream({}, request_id=RUN) as greedy,
        client.stream({}) as stream,
    ):
        await anext(stream)
        piece = b"".join(message.SerializeToString() for message in episode_stream())
        for _ in range(1 + 256 * 1024 // len(piece) + 1):
            carrying.lanes.streams[0].send(run_data=pb.RunData(run_number=1, data=piece))
        await asyncio.to_thread(
            carrying.lanes.wait_until, lambda lanes: ("leave_run", 1, 0) in lanes.streams[0].frames
        )
        go_on.set()
        await stream.result()
        with pytest.raises(EnvError) as caught:
            await greedy.result()
        assert caught.value.code == "INTERNAL"
    assert carrying.cancelled_ids() == [RUN]


async def test_a_run_that_was_left_is_held_no_longer_whether_or_not_its_end_comes(
    carrying: ScriptedService,
) -> None:
    def runs() -> int:
        return sum(isinstance(thing, LaneRun) for thing in gc.get_objects())

    go_on = threading.Event()
    carrying.on_run(Send(opening()), Wait(go_on))
    gc.collect()  # What other tests have left.
    before = runs()
    async with EnvClient(carrying.address) as client:
        async with client.stream({}) as stream:
            await anext(stream)
            assert runs() == before + 1
        del stream
        assert runs() == before
        go_on.set()


async def test_when_its_tasks_are_cancelled_its_runs_end_and_the_next_opens_it_anew(
    carrying: ScriptedService,
) -> None:
    carrying.on_run(Send(opening()), Hang())
    replies(carrying)
    async with EnvClient(carrying.address) as client, client.stream({}, request_id=RUN) as stream:
        await anext(stream)
        for task in asyncio.all_tasks():
            if task.get_name().startswith("envtrio-lane"):
                task.cancel()
        with pytest.raises(UnavailableError, match="this run broke: its task was cancelled"):
            await anext(stream)
        await client.run({})
    assert [epoch for _, epoch in carrying.lanes.opens] == [1, 2]
    assert carrying.cancelled_ids() == [RUN]


async def test_tasks_that_are_cancelled_before_they_began(carrying: ScriptedService) -> None:
    async with EnvClient(carrying.address) as client, client.stream({}, request_id=RUN) as stream:
        for task in asyncio.all_tasks():
            if task.get_name().startswith("envtrio-lane"):
                task.cancel()
        with pytest.raises(UnavailableError, match="this run broke: its task was cancelled"):
            await anext(stream)
    assert carrying.runs == []
    assert carrying.cancelled_ids() == [RUN]


async def test_a_run_leaves_nothing_for_the_garbage_collector(carrying: ScriptedService) -> None:
    count = 30
    for _ in range(count + 1):
        replies(carrying)
    async with EnvClient(carrying.address, timeout=60) as client:
        await client.run({})
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(count):
                await client.run({})
            gc.collect()
            left = [type(thing).__name__ for thing in gc.garbage]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    ours = [name for name in left if name in {"LaneRun", "EpisodeStream", "Intake", "RunRequest", "Episode"}]
    assert ours == []


TORN = """
import asyncio, sys
from env_client import EnvClient
address, how = sys.argv[1:]

async def main():
    client = EnvClient(address)
    await client.run({})
    streams = [client.stream({}), client.stream({})]
    for stream in streams:
        await stream.__aenter__()
    await anext(streams[0])
    if how == "run":
        asyncio.ensure_future(streams[0].result())
        asyncio.ensure_future(client.run({}))
        await asyncio.sleep(0)
    return client, streams

if how == "run":
    kept = asyncio.run(main())
else:
    loop = asyncio.new_event_loop()
    kept = loop.run_until_complete(main())
    if how == "closed":
        loop.close()
"""


@pytest.mark.parametrize("how", ["run", "closed", "left"])
def test_a_loop_that_is_torn_down_without_closing_says_nothing(carrying: ScriptedService, how: str) -> None:
    replies(carrying)
    for _ in range(3):
        carrying.on_run(Send(opening()), Hang(), optional=True)
    command = [sys.executable, "-W", "error", "-c", TORN, carrying.address, how]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert len(carrying.lanes.opens) == 1
