"""Whatever ends a run other than its delivery: the server is told, once, and nobody else is disturbed."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import grpc
import pytest

from env_client import (
    AssemblyError,
    DuplicateRequestError,
    EnvClient,
    EnvError,
    InternalError,
    RunCancelledError,
    RunDeadlineError,
    UnavailableError,
    ValidationError,
    WorkerLostError,
    intake,
)
from tests.helpers.deltas import episode_stream, growth, opening, reply
from tests.helpers.scripted_end import End
from tests.helpers.scripted_service import Hang, Reach, Send, Wait

if TYPE_CHECKING:
    from envtrio.v1.delta_pb2 import DeltaStream, TraceDelta

    from tests.helpers.scripted_service import ScriptedService

RUN = "0123456789abcdef0123456789abcdef"
TRANSPORTS = ("run", "lane")
BIG = 200_000  # Tokens: more than 1 MiB a message.


def sends(*messages: DeltaStream | bytes) -> list[Send]:
    return [Send(message) for message in messages]


async def test_a_delivered_episode_is_not_cancelled(service: ScriptedService) -> None:
    service.on_run(*sends(*episode_stream()))
    seen: list[TraceDelta] = []
    async with EnvClient(service.address) as client:
        episode = await client.run({}, request_id=RUN, on_delta=seen.append)
    assert episode.head.ok
    assert [len(trace.nodes) for trace in episode.traces] == [3]
    assert [delta.seq for delta in seen] == [0, 1, 2]
    assert service.cancelled_ids() == []


async def test_a_failed_episode_is_data(service: ScriptedService) -> None:
    first = opening()
    service.on_run(*sends(first, reply(first, ok=False)))
    async with EnvClient(service.address) as client:
        assert not (await client.run({})).head.ok
    assert service.cancelled_ids() == []


async def test_cancelled_before_the_request_left(service: ScriptedService) -> None:
    service.on_run(Hang(), optional=True)
    async with EnvClient(service.address) as client:
        task = asyncio.create_task(client.run({}, request_id=RUN))
        await asyncio.sleep(0)  # Now the call object exists, and nothing more.
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert service.cancelled_ids() == [RUN]


@pytest.mark.parametrize("with_reply", [False, True], ids=["in mid-stream", "after the reply"])
async def test_cancelled_while_the_stream_is_open(service: ScriptedService, with_reply: bool) -> None:
    messages = episode_stream()
    joined = b"".join(message.SerializeToString() for message in messages[: 3 + with_reply])
    service.on_run(Send(joined), Hang())
    landed = asyncio.Event()
    async with EnvClient(service.address) as client:
        task = asyncio.create_task(client.run({}, request_id=RUN, on_delta=lambda _: landed.set()))
        await landed.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert service.cancelled_ids() == [RUN]


async def test_cancelled_while_a_big_episode_is_checked(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.on_run(*sends(*episode_stream(1, count=BIG)))
    loop = asyncio.get_running_loop()
    checking, go_on = asyncio.Event(), threading.Event()

    def slow_check(_episode: object) -> None:
        loop.call_soon_threadsafe(checking.set)
        assert go_on.wait(20)

    monkeypatch.setattr(intake, "check_episode", slow_check)
    async with EnvClient(service.address) as client:
        task = asyncio.create_task(client.run({}, request_id=RUN))
        await checking.wait()  # The loop is free while the check runs.
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
    assert service.cancelled_ids() == [RUN]


async def test_deadline_while_the_server_is_silent(service: ScriptedService) -> None:
    service.on_run(*sends(opening()), Hang())
    async with EnvClient(service.address, timeout=0.2) as client:
        with pytest.raises(RunDeadlineError, match=r"timeout of 0\.2 s") as caught:
            await client.run({}, request_id=RUN)
    assert caught.value.request_id == RUN
    assert service.cancelled_ids() == [RUN]
    assert service.run_timeouts[0] is not None


async def test_deadline_while_the_callback_waits(service: ScriptedService) -> None:
    service.on_run(*sends(*episode_stream()))

    async def for_ever(_delta: TraceDelta) -> None:
        await asyncio.Event().wait()

    async with EnvClient(service.address) as client:
        with pytest.raises(RunDeadlineError, match=r"0.2 s"):
            await client.run({}, request_id=RUN, timeout=0.2, on_delta=for_ever)
    assert service.cancelled_ids() == [RUN]


async def test_a_check_that_ends_after_the_deadline(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.on_run(*sends(*episode_stream()))
    loop = asyncio.get_running_loop()
    late = loop.time() + 100

    def long_check(_episode: object) -> None:
        # It does not suspend, so no timer can interrupt it.
        monkeypatch.setattr(loop, "time", lambda: late)

    monkeypatch.setattr(intake, "check_episode", long_check)
    async with EnvClient(service.address) as client:
        with pytest.raises(RunDeadlineError, match=r"timeout of 50 s"):
            await client.run({}, request_id=RUN, timeout=50)
        monkeypatch.undo()
    assert service.cancelled_ids() == [RUN]


@pytest.mark.parametrize("kind", ["plain", "asynchronous"])
async def test_callback_raises(service: ScriptedService, kind: str) -> None:
    service.on_run(*sends(*episode_stream()))

    def plain(_delta: TraceDelta) -> None:
        raise TimeoutError("the callback's own")

    async def asynchronous(delta: TraceDelta) -> None:
        plain(delta)

    async with EnvClient(service.address) as client:
        with pytest.raises(TimeoutError, match="the callback's own"):
            await client.run({}, request_id=RUN, on_delta=plain if kind == "plain" else asynchronous)
    assert service.cancelled_ids() == [RUN]
    assert service.cancels[0].cause == "TimeoutError: the callback's own"


def wrong_mask() -> list[DeltaStream | bytes]:
    first = opening()
    first.deltas[0].append.nodes[0].mask = b"\2\0"
    return [first, reply(first)]


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([b"\xff\xff\xff"], AssemblyError),
        ([b"\xff" * 1_100_000], AssemblyError),
        ([opening(), growth(2)], AssemblyError),
        ([opening()], AssemblyError),
        ([opening(), reply(opening(), growth(1))], AssemblyError),
        (wrong_mask(), ValidationError),
    ],
    ids=["undecodable", "big and undecodable", "gap", "no reply", "wrong counts", "failed check"],
)
async def test_what_cannot_be_used(
    service: ScriptedService, messages: list[DeltaStream | bytes], error: type[EnvError]
) -> None:
    service.on_run(*sends(*messages))
    async with EnvClient(service.address) as client, client.stream({}, request_id=RUN) as stream:
        with pytest.raises(error, match=r"^run 01234567: ") as caught:
            await stream.result()
        assert caught.value.request_id == RUN
        # At once, not only when the context is left; and the failure stays.
        assert (await asyncio.to_thread(service.wait_for_cancels, 1))[0].request_id == RUN
        with pytest.raises(error):
            await anext(stream)
    assert service.cancelled_ids() == [RUN]


@pytest.mark.parametrize(
    ("end", "error", "told"),
    [
        (End(grpc.StatusCode.UNKNOWN), InternalError, True),
        (End(grpc.StatusCode.UNAVAILABLE), UnavailableError, True),
        (End(grpc.StatusCode.UNAVAILABLE, "WORKER_LOST", domain="elsewhere"), UnavailableError, True),
        (End(grpc.StatusCode.UNAVAILABLE, "WORKER_LOST"), WorkerLostError, True),
        (End(grpc.StatusCode.CANCELLED, "CANCEL_REQUESTED"), RunCancelledError, False),
        (End(grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID"), DuplicateRequestError, False),
        (End(grpc.StatusCode.ALREADY_EXISTS), DuplicateRequestError, False),
    ],
)
async def test_statuses(service: ScriptedService, end: End, error: type[EnvError], told: bool) -> None:
    service.on_run(*sends(opening()), end)
    async with EnvClient(service.address) as client:
        with pytest.raises(error) as caught:
            await client.run({}, request_id=RUN)
    assert type(caught.value) is error
    assert service.cancelled_ids() == [RUN] * told


async def test_a_reply_and_then_any_status_but_ok(service: ScriptedService) -> None:
    service.on_run(*sends(*episode_stream()), End(grpc.StatusCode.CANCELLED, "CALLER_LOST"))
    async with EnvClient(service.address) as client:
        with pytest.raises(RunCancelledError):
            await client.run({}, request_id=RUN)
    assert service.cancelled_ids() == [RUN]


async def test_a_malformed_run_disturbs_no_other(service: ScriptedService) -> None:
    reached, go_on = threading.Event(), threading.Event()
    first, *rest = episode_stream(3)
    for _ in range(8):
        service.on_run(Send(first), Wait(go_on), *sends(*rest), script="good")
    service.on_run(Reach(reached), *sends(b"\x07"), script="bad")
    async with EnvClient(service.address) as client:
        good = [asyncio.create_task(client.run({"script": "good"})) for _ in range(8)]
        with pytest.raises(AssemblyError):
            await client.run({"script": "bad"}, request_id=RUN)
        assert reached.is_set()
        go_on.set()
        assert [len((await task).traces[0].nodes) for task in good] == [4] * 8
    assert service.cancelled_ids() == [RUN]


async def test_closing_the_client_ends_its_runs(service: ScriptedService) -> None:
    service.on_run(*sends(opening()), Hang())
    landed = asyncio.Event()
    client = EnvClient(service.address)
    task = asyncio.create_task(client.run({}, request_id=RUN, on_delta=lambda _: landed.set()))
    await landed.wait()
    await client.close()
    with pytest.raises(RunCancelledError, match="was abandoned"):
        await task
    assert service.cancelled_ids() == [RUN]
    with pytest.raises(RuntimeError, match="closed"):
        await client.run({})


async def test_closing_the_client_while_an_episode_is_checked(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.on_run(*sends(*episode_stream(1, count=BIG)))
    loop = asyncio.get_running_loop()
    checking, go_on = asyncio.Event(), threading.Event()

    def slow_check(_episode: object) -> None:
        loop.call_soon_threadsafe(checking.set)
        assert go_on.wait(20)

    monkeypatch.setattr(intake, "check_episode", slow_check)
    client = EnvClient(service.address)
    task = asyncio.create_task(client.run({}, request_id=RUN))
    await checking.wait()
    await client.close()
    go_on.set()
    with pytest.raises(RunCancelledError, match="was abandoned"):
        await task
    assert service.cancelled_ids() == [RUN]


async def test_a_coroutine_that_is_closed_still_tells(service: ScriptedService) -> None:
    service.on_run(Hang(), optional=True)
    client = EnvClient(service.address)
    run = client.run({}, request_id=RUN)
    run.send(None)  # Runs until it waits for the server; then nobody comes back to it.
    run.close()
    await client.close()
    assert service.cancelled_ids() == [RUN]
