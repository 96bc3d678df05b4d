"""What a worker's session refuses, and that a refusal counts as an end without a goodbye."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from envtrio.v1 import env_service_pb2 as pb

from env_worker import session_frames, sessions
from env_worker.delta.frames import delimited, tag
from tests.helpers.run_stream import RunStream
from tests.helpers.runner_harness import SECONDS, within
from tests.helpers.stub_client import new_id
from tests.helpers.worker_server import ENDLESS, SMALL, serving_worker

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
        read = session_frames.read_message

        async def seen(context: Any) -> pb.SessionRequest | None:
            reads.set()
            return await read(context)

        monkeypatch.setattr(sessions, "read_message", seen)
        silent = subject.stream()
        await asyncio.wait_for(reads.wait(), SECONDS)
        subject.server.sessions.close()
        assert await silent.status() == ("UNAVAILABLE", "DRAINING")
        subject.server.sessions.close()  # again changes nothing


BAD_FRAMES: dict[str, list[dict[str, Any]]] = {
    "empty": [{}],
    "second open": [{"open": opening(epoch=2)}],
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


# Runs in a session.

OPEN = pb.OpenRun(run_number=7, request=pb.RunRequest(), credit_bytes=1)
MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "number again": ({"open_run": pb.OpenRun(run_number=1)}, "run_number 1 comes after 1"),
    "lower number": ({"open_run": pb.OpenRun()}, "run_number 0 comes after 1"),
    "credit before open": (
        {"run_credit": pb.RunCredit(run_number=2)},
        "`run_credit` of run_number 2, but the last",
    ),
    "leave before open": ({"leave_run": pb.LeaveRun(run_number=9)}, "`leave_run` of run_number 9"),
    "1,025 more": (
        {"confirm": pb.Confirm(), "more": [pb.SessionRequest(confirm=pb.Confirm())] * 1025},
        "`more` has 1025 frames, the limit is 1024",
    ),
    "more in more": (
        {
            "confirm": pb.Confirm(),
            "more": [pb.SessionRequest(open_run=OPEN, more=[pb.SessionRequest(confirm=pb.Confirm())])],
        },
        "a frame in `more` has 1 in a `more` of its own",
    ),
    "open in more": (
        {"confirm": pb.Confirm(), "more": [pb.SessionRequest(open=pb.SessionOpen(epoch=2))]},
        "a second `open`",
    ),
    "behind goodbye": (
        {"goodbye": pb.SessionGoodbye(), "more": [pb.SessionRequest(open_run=OPEN)]},
        "`open_run` behind `goodbye`",
    ),
    "empty in more": ({"confirm": pb.Confirm(), "more": [pb.SessionRequest()]}, "a frame without content"),
}


@pytest.mark.parametrize(("frame", "said"), MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_frame_ends_its_stream_and_the_runs_of_that_and_nothing_else(
    frame: dict[str, Any], said: str
) -> None:
    async with serving_worker() as subject:
        stream, other = await RunStream(subject).open(), await RunStream(subject).open("f" * 32)
        run, untouched = stream.start(ENDLESS), other.start(ENDLESS)
        await stream.until(lambda: run.admitted)
        await other.until(lambda: untouched.admitted)
        await stream.session.send(**frame)
        assert await stream.status() == ("INVALID_ARGUMENT", "INVALID_REQUEST")
        assert said in (await stream.session.call.details() or "")
        entry = subject.runner.table.get(run.run)
        assert entry is None or (entry.cause is not None and entry.cause.name == "CALLER_LOST")
        assert subject.server.sessions.table.owner("e" * 32) == 1, "it may come back"
        await within(subject.runner.wait_until(lambda: subject.runner.slots.held == 1))
        back = await RunStream(subject).open(epoch=2)
        assert (await back.run(SMALL)).code == "OK"
        assert (await other.run(SMALL)).code == "OK"
        assert untouched.end is None
        back.drop()
        other.drop()


@pytest.mark.parametrize("size", [3, 300 * 1024])
async def test_bytes_that_are_no_frame_end_their_stream(size: int) -> None:
    async with serving_worker() as subject:
        stream = await RunStream(subject).open()
        run = stream.start(ENDLESS)
        await stream.until(lambda: run.admitted)
        # A text that is no UTF-8.
        stream.session.call._request_serializer = lambda _: delimited(
            tag(1), delimited(tag(1), b"\xff" * size)
        )
        await stream.session.send()
        assert await stream.status() == ("INVALID_ARGUMENT", "INVALID_REQUEST")
        assert "no SessionRequest" in (await stream.session.call.details() or "")
        await within(subject.runner.wait_until(lambda: not subject.runner.slots.held))


async def test_frames_beside_open_count_behind_it() -> None:
    async with serving_worker() as subject:
        stream = RunStream(subject)
        run = stream.start(SMALL)
        opening = pb.SessionOpen(session_id="e" * 32, epoch=1, protocol_generation=1)
        message = pb.SessionRequest(open=opening, more=stream._frames)
        stream._frames = []
        await stream.session.send_message(message)
        first = await stream.session.read()
        assert first is not None
        assert first.WhichOneof("frame") == "opened"
        for frame in first.more:
            stream._take(frame)
        assert (await stream.finish(run))[0].code == "OK"
        stream.drop()
