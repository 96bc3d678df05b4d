"""A large message of a session leaves others their turns, or is refused before it costs anything."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from envtrio.v1 import env_service_pb2 as pb

from env_worker import entrance, runner
from tests.helpers.run_stream import RunStream
from tests.helpers.stub_client import new_id
from tests.helpers.worker_server import ENDLESS, SMALL, serving_worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

KIB = 1024


@contextlib.asynccontextmanager
async def turns() -> AsyncIterator[Callable[[], int]]:
    """How often another task has had its turn."""
    count = 0

    async def take() -> None:
        nonlocal count
        while True:
            count += 1
            await asyncio.sleep(0)

    taking = asyncio.create_task(take())
    try:
        yield lambda: count
    finally:
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)


@pytest.mark.parametrize("repeated", [False, True])
async def test_confirms_of_one_message_leave_others_their_turns(
    monkeypatch: pytest.MonkeyPatch, repeated: bool
) -> None:
    confirm, confirmed = runner.Runner.confirm, Counter[int]()

    def counted(self: Any, request_id: str) -> Any:
        confirmed[turn()] += 1
        return confirm(self, request_id)

    monkeypatch.setattr(runner.Runner, "confirm", counted)
    async with serving_worker() as subject, turns() as turn:
        session = await subject.session("a" * 32)
        ids = [new_id() for _ in range(1024)]
        frames = [
            pb.SessionRequest(confirm=pb.Confirm(request_ids=ids if repeated else [new_id()] * 1024))
            for _ in range(8)
        ]
        await session.send_message(pb.SessionRequest(confirm=frames[0].confirm, more=frames[1:]))
        await subject.until(lambda: confirmed.total() == 8 * 1024)
        assert set(confirmed.values()) == {1024}
        session.drop()


@pytest.mark.parametrize(("size", "most"), [(60 * KIB, 2), (100, 32)])
async def test_opens_of_one_message_leave_others_their_turns(
    monkeypatch: pytest.MonkeyPatch, size: int, most: int
) -> None:
    read, opened = entrance.Entrance.read, Counter[int]()

    def counted(self: Any, request: Any, deadline: float | None) -> Any:
        opened[turn()] += 1
        return read(self, request, deadline)

    monkeypatch.setattr(entrance.Entrance, "read", counted)
    async with serving_worker(max_queue=200) as subject, turns() as turn:
        stream = await RunStream(subject).open()
        task = '{"turns": 1}' + " " * size
        runs = [stream.start(task) for _ in range(100)]
        await stream.finish(*runs)
        assert max(opened.values()) == most, "32 runs, or about 128 KiB"
        stream.drop()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x3a\x00" * 4_000_000, "`more` has 1025 or more frames"),
        (b"\x3a\x00" * 10_000, "`more` has 1025 or more frames"),
        (b"\x3b\x3c" * 10_000, "no SessionRequest (wire type 3"),
    ],
    ids=["8 MB", "20 kB", "groups"],
)
@pytest.mark.parametrize("first", [False, True])
async def test_a_message_that_would_be_much_once_parsed_ends_its_stream_alone(
    data: bytes, said: str, first: bool
) -> None:
    async with serving_worker() as subject:
        stream, other = RunStream(subject), await RunStream(subject).open("f" * 32)
        if not first:
            run = (await stream.open()).start(ENDLESS)
            await stream.until(lambda: run.admitted)
        stream.session.call._request_serializer = lambda _: data
        await stream.session.send()
        assert await stream.status() == ("INVALID_ARGUMENT", "INVALID_REQUEST")
        assert said in (await stream.session.call.details() or "")
        assert (await other.run(SMALL)).code == "OK"
        other.drop()
