"""What a worker's session refuses, and that a refusal counts as an end without a goodbye."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from envtrio.v1 import env_service_pb2 as pb

from env_worker import sessions
from tests.helpers.runner_harness import SECONDS
from tests.helpers.stub_client import new_id
from tests.helpers.worker_server import serving_worker

INVALID = ("INVALID_ARGUMENT", "INVALID_REQUEST")


def opening(**fields: Any) -> pb.SessionOpen:
    return pb.SessionOpen(**{"session_id": "a" * 32, "epoch": 1, "protocol_generation": 1, **fields})


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        ({}, INVALID),
        ({"confirm": pb.Confirm()}, INVALID),
        ({"goodbye": pb.SessionGoodbye()}, INVALID),
        ({"open": opening(session_id="A" * 32)}, INVALID),
        ({"open": opening(session_id="")}, INVALID),
        ({"open": opening(epoch=0)}, INVALID),
        ({"open": opening(protocol_generation=2)}, ("FAILED_PRECONDITION", "PROTOCOL_GENERATION")),
    ],
)
async def test_a_first_frame_that_is_no_good_opens_nothing(
    frame: dict[str, Any], status: tuple[str, str]
) -> None:
    async with serving_worker() as subject:
        stream = subject.stream()
        await stream.send(**frame)
        assert await stream.status() == status
        assert len(subject.server.sessions.table) == 0


async def test_no_frame_at_all() -> None:
    async with serving_worker() as subject:
        stream = subject.stream()
        await stream.call.done_writing()
        assert await stream.status() == INVALID


async def test_a_stream_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sessions.OPEN_SECONDS == 10.0
    monkeypatch.setattr(sessions, "OPEN_SECONDS", 0.01)
    async with serving_worker() as subject:
        assert await subject.stream().status() == INVALID
        assert len(subject.server.sessions.table) == 0


async def test_a_worker_that_ends_does_not_wait_for_a_first_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_worker() as subject:
        reads = asyncio.Event()
        read = sessions._read

        async def seen(context: Any) -> object:
            reads.set()
            return await read(context)

        monkeypatch.setattr(sessions, "_read", seen)
        silent = subject.stream()
        await asyncio.wait_for(reads.wait(), SECONDS)
        subject.server.sessions.close()
        assert await silent.status() == ("UNAVAILABLE", "DRAINING")
        subject.server.sessions.close()  # again changes nothing


BAD_FRAMES: dict[str, list[dict[str, Any]]] = {
    "empty": [{}],
    "second open": [{"open": opening(epoch=2)}],
    "open_run": [{"open_run": pb.OpenRun(run_number=1)}],
    "run_credit": [{"run_credit": pb.RunCredit(run_number=1)}],
    "too many ids": [{"confirm": pb.Confirm(request_ids=["0" * 32] * 1025)}],
    "malformed id": [{"confirm": pb.Confirm(request_ids=["0" * 32, "nonsense"])}],
    "behind goodbye": [{"goodbye": pb.SessionGoodbye()}, {"confirm": pb.Confirm()}],
    "half-close": [],
}


@pytest.mark.parametrize("frames", BAD_FRAMES.values(), ids=BAD_FRAMES)
async def test_a_bad_frame_ends_the_stream_without_a_goodbye(frames: list[dict[str, Any]]) -> None:
    async with serving_worker() as subject:
        session = await subject.session("a" * 32)
        other = await subject.session("b" * 32)
        run = await subject.replied("a" * 32)
        for frame in frames:
            await session.send(**frame)
        if not frames:
            await session.call.done_writing()
        assert await session.status() == INVALID
        await subject.until_away()
        assert subject.server.sessions.table.owner("a" * 32) == 1, "it may come back"
        assert await other.confirm(new_id()) == ["UNKNOWN"]
        back = await subject.session("a" * 32, 2)
        assert await back.confirm(run) == ["CONFIRMED"]
        back.drop()


async def test_a_frame_with_a_malformed_id_confirms_nothing() -> None:
    async with serving_worker() as subject:
        session = await subject.session("a" * 32)
        run = await subject.replied("a" * 32)
        await session.send(confirm=pb.Confirm(request_ids=[run, run[:31]]))
        assert await session.status() == INVALID
        assert await subject.client.cancel(run) == "DISCARDED"


async def test_full_it_says_when_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_worker() as subject:
        monkeypatch.setattr(subject.server.sessions.table, "_limit", 1)
        first = await subject.session("a" * 32)
        second = subject.stream()
        await second.send(open=opening(session_id="b" * 32))
        assert await second.status() == ("RESOURCE_EXHAUSTED", "TABLE_FULL")
        assert await first.goodbye() == ("OK", "")
        third = await subject.session("b" * 32)
        third.drop()


async def test_a_worker_that_ends_opens_no_session() -> None:
    async with serving_worker() as subject:
        subject.server.sessions.close()
        late = subject.stream()
        await late.send(open=opening())
        assert await late.status() == ("UNAVAILABLE", "DRAINING")
