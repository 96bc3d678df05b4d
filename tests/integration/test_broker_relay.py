"""What a broker does with a run's stream: nothing but pass it on, and tell the worker when it cannot."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import grpc
import pytest

from env_broker import run_leg, servicer
from env_broker.held_request import HeldRequest
from tests.helpers.raw_client import connected, message, run_request
from tests.helpers.scripted_worker import Abort, Admit, Hang, Reach, ScriptedWorker, Send, Wait
from tests.helpers.stub_client import new_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MIB = 2**20


@pytest.fixture(autouse=True, params=[False, True], ids=["run", "lane"])
def by_lane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the broker sends its runs to the worker in one stream, or each by a call of its own."""
    monkeypatch.setattr(ScriptedWorker, "carries_runs", request.param)
    return bool(request.param)


async def test_bytes_pass_verbatim_both_ways(by_lane: bool) -> None:
    run = new_id()
    messages = [message("a"), b"", message("b"), b"\xff not protobuf at all"]
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, *map(Send, messages))
        sent = run_request(run, owner="me") + b"\xba\x3e\x03abc"
        got, code, reason = await client.read_all(client.run_bytes(sent))
        assert (b"".join(got), code, reason) == (b"".join(messages), "OK", "")
        assert got == messages or by_lane, "what comes in a stream may be joined"
        assert worker.runs[run].data == sent
        assert 15 < (worker.runs[run].time_remaining or 0) < 21  # gRPC rounds it up


async def test_initial_metadata_says_that_the_worker_admitted_the_run() -> None:
    run, admit = new_id(), asyncio.Event()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Wait(admit), Admit(), Hang())
        call = client.start(run)
        metadata = asyncio.create_task(call.initial_metadata())
        await worker.until(lambda: run in worker.runs)
        assert not metadata.done()
        admit.set()
        await asyncio.wait_for(metadata, 10)
        call.cancel()
        await worker.until(lambda: worker.runs[run].ended)


async def test_a_request_is_let_go_of_when_a_worker_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By everybody: by the calls of gRPC on both sides too."""
    held: list[int] = []
    dropped = asyncio.Event()

    class Counted(HeldRequest):
        def drop(self) -> None:
            held.append(sys.getrefcount(self.data) - 1)
            super().drop()
            dropped.set()

    monkeypatch.setattr(servicer, "HeldRequest", Counted)
    monkeypatch.setattr(run_leg, "SETTLED_SECONDS", 0.05)
    run, admit = new_id(), asyncio.Event()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Wait(admit), Admit(), Wait(dropped), Send(message("a")))
        call = asyncio.create_task(client.run(run, task_json="x" * (MIB // 2)))
        await worker.until(lambda: run in worker.runs)
        assert not dropped.is_set(), "it may be declined, and go elsewhere"
        admit.set()
        assert await call == ([message("a")], "OK", "")
    assert held == [1]


async def test_a_call_without_a_request_is_refused() -> None:
    async def nothing() -> AsyncIterator[bytes]:
        for data in ():
            yield data

    async with connected() as (broker, _), grpc.aio.insecure_channel(broker.address) as channel:
        call = channel.stream_stream("/envtrio.v1.EnvService/Run")(nothing(), timeout=10)
        with suppress(grpc.aio.AioRpcError):
            await call.read()
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "had no RunRequest" in (await call.details() or "")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_TASK"),
        (grpc.StatusCode.INTERNAL, "HOOK_FAILED"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "ARRAY_BUDGET"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE"),
    ],
)
async def test_a_workers_status_passes_with_its_details(code: grpc.StatusCode, reason: str) -> None:
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        abort = Abort(code, reason, "the words: ö", {"field": "task_json"})
        worker.script(run, Send(message("a")), abort)
        call = client.start(run)
        assert await client.read_all(call) == ([message("a")], code.name, reason)
        assert await call.details() == "the words: ö"
        assert tuple(await call.trailing_metadata()) == abort.details()
        await broker.relay.idle()
        assert worker.cancels == []  # the worker has settled it


@pytest.mark.parametrize(
    ("code", "translated"),
    [
        (grpc.StatusCode.UNAVAILABLE, ("UNAVAILABLE", "WORKER_LOST")),
        (grpc.StatusCode.CANCELLED, ("UNAVAILABLE", "WORKER_LOST")),
        (grpc.StatusCode.DEADLINE_EXCEEDED, ("DEADLINE_EXCEEDED", "DEADLINE")),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE")),
        (grpc.StatusCode.UNKNOWN, ("INTERNAL", "INTERNAL")),
    ],
)
async def test_a_status_that_no_worker_gave_is_put_in_the_contracts_words(
    code: grpc.StatusCode, translated: tuple[str, str]
) -> None:
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Send(message("a")), Abort(code))
        assert (await client.run(run))[1:] == translated
        await worker.until(lambda: worker.cancels)  # it may count the run as delivered


async def test_a_client_that_does_not_read_holds_its_worker_up() -> None:
    run, other, megabyte = new_id(), new_id(), b"\xba\x3e" + b"\xfc\xff\x3f" + b"x" * (MIB - 4)
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, *[Send(megabyte)] * 64)
        worker.script(other, Send(message("a")))
        call = client.start(run)
        await worker.until(lambda: run in worker.runs and worker.runs[run].sent)
        assert await client.run(other) == ([message("a")], "OK", "")  # nobody else is held up
        assert worker.runs[run].sent < 32
        got, code, _ = await client.read_all(call)
        assert (b"".join(got), code) == (megabyte * 64, "OK")


@pytest.mark.parametrize("by_lane", [False], indirect=True)  # in a stream it costs the worker all its runs
async def test_an_oversized_message_fails_its_own_run_and_tells_the_worker() -> None:
    run, other, go = new_id(), new_id(), asyncio.Event()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Send(b"x" * (66 * MIB), lost=True))
        worker.script(other, Wait(go), Send(message("a")))
        undisturbed = client.start(other)
        call = client.start(run)
        assert (await client.read_all(call))[1:] == ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE")
        assert "69206016" in await call.details()
        assert "67108864" in await call.details()
        await worker.until(lambda: [cancel.request_id for cancel in worker.cancels] == [run])
        go.set()
        assert await client.read_all(undisturbed) == ([message("a")], "OK", "")


async def test_an_oversized_request_is_refused_naming_the_field() -> None:
    async with connected() as (_, client):
        call = client.start(new_id(), task_json="x" * (64 * MIB))
        assert (await client.read_all(call))[1:] == ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE")
        assert "task_json" in await call.details()


async def test_a_deadline_passes_to_the_worker_and_ends_the_run_there() -> None:
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Send(message("a")), Hang())
        assert (await client.run(run, timeout=0.5))[1] == "DEADLINE_EXCEEDED"
        assert (worker.runs[run].time_remaining or 1) < 0.6
        await worker.until(lambda: worker.runs[run].ended and worker.cancels)


async def test_a_request_id_runs_once() -> None:
    run, go, reached = new_id(), asyncio.Event(), asyncio.Event()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Reach(reached), Wait(go), Send(message("a")))
        first = asyncio.create_task(client.run(run))
        await reached.wait()
        assert (await client.run(run))[1:] == ("ALREADY_EXISTS", "DUPLICATE_REQUEST_ID")
        go.set()
        assert await first == ([message("a")], "OK", "")
        assert (await client.run(run))[1:] == ("ALREADY_EXISTS", "DUPLICATE_REQUEST_ID")
        assert worker.cancels == []


async def test_requests_are_checked() -> None:
    async with connected() as (_, client):
        assert (await client.run("x" * 32))[1:] == ("INVALID_ARGUMENT", "INVALID_REQUEST_ID")
        other = await client.run(new_id(), protocol_generation=2)
        assert other[1:] == ("FAILED_PRECONDITION", "PROTOCOL_GENERATION")
        call = client.run_bytes(b"\xff\xff")
        assert (await client.read_all(call))[1:] == ("INVALID_ARGUMENT", "INVALID_REQUEST")
