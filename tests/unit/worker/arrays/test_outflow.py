"""Pieces on their way to a caller, written by hand as protobuf would write them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from envtrio.v1 import errors_pb2, training_array_service_pb2

from env_worker.arrays import outflow as outflow_module
from env_worker.arrays.outflow import Outflow, StalledError, framed
from env_worker.arrays.places import Place
from env_worker.status import Refusal


@pytest.mark.parametrize("size", [1, 2, 127, 128, 129, 16_383, 16_384, 2**20, 2**21 - 1, 2**21, 5_000_000])
def test_a_framed_piece_is_what_protobuf_makes_of_it(size: int) -> None:
    piece = bytes(range(256)) * (size // 256 + 1)
    piece = piece[:size]
    expected = training_array_service_pb2.FetchResponse(piece=piece)
    assert framed(piece) == expected.SerializeToString()


class Body:
    """Pieces, and which of them were asked for."""

    def __init__(self, *pieces: bytes) -> None:
        self.rest = list(pieces)

    async def next(self) -> bytes | None:
        return self.rest.pop(0) if self.rest else None


class Caller:
    """A context whose writes end when the test says so."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.gate = asyncio.Semaphore(0)
        self.error: BaseException | None = None

    async def write(self, message: bytes) -> None:
        self.written.append(message)
        await self.gate.acquire()
        if self.error is not None:
            raise self.error


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def outflow(
    caller: Caller,
    stall_seconds: float = 60.0,
    turns: asyncio.Semaphore | None = None,
    place: Place | None = None,
) -> Outflow:
    context: Any = caller
    return Outflow(context, turns or asyncio.Semaphore(1), place or Place(), stall_seconds)


@pytest.fixture
def generous(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, a caller that takes a piece at once counts as one that does."""
    monkeypatch.setattr(outflow_module, "TURN_SECONDS", 60.0)
    monkeypatch.setattr(outflow_module, "BRISK_SECONDS", 60.0)


@pytest.mark.usefixtures("generous")
async def test_the_next_piece_is_read_while_one_is_written_and_no_more_than_that() -> None:
    caller, body = Caller(), Body(b"a", b"b" * 10, b"c" * 10, b"d" * 10)
    sending = asyncio.create_task(outflow(caller).send(b"first", body))  # type: ignore[arg-type]
    for _ in range(2):
        caller.gate.release()
    await turns()
    assert caller.written == [b"first", framed(b"a"), framed(b"b" * 10)]
    assert len(body.rest) == 1, "one is ready"
    caller.gate.release()
    await turns()
    assert caller.written[-1] == framed(b"c" * 10)
    assert body.rest == []
    for _ in range(2):
        caller.gate.release()
    await sending
    assert caller.written[-1] == framed(b"d" * 10)


async def test_nothing_is_read_ahead_for_a_caller_that_does_not_take_what_there_is() -> None:
    caller, body = Caller(), Body(b"a" * 10, b"b" * 10)
    caller.gate.release()
    sending = asyncio.create_task(outflow(caller).send(b"first", body))  # type: ignore[arg-type]
    await turns()
    assert caller.written == [b"first", framed(b"a" * 10)]
    assert len(body.rest) == 1
    for _ in range(2):
        caller.gate.release()
    await sending


@pytest.mark.usefixtures("generous")
async def test_callers_that_take_nothing_hold_no_turn() -> None:
    shared = asyncio.Semaphore(1)
    stuck = [Caller() for _ in range(20)]
    sending = [
        asyncio.create_task(outflow(caller, turns=shared).send(b"first", Body(b"a")))  # type: ignore[arg-type]
        for caller in stuck
    ]
    for caller in stuck:
        caller.gate.release()
    async with asyncio.timeout(5):
        while any(len(caller.written) < 2 for caller in stuck):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0)
        assert len(await read_all(shared)) == 12
    for task in sending:
        task.cancel()
    await asyncio.gather(*sending, return_exceptions=True)


async def test_a_brisk_caller_that_stops_holds_no_turn_for_long() -> None:
    caller, shared = Caller(), asyncio.Semaphore(1)
    for _ in range(3):
        caller.gate.release()
    sending = asyncio.create_task(
        outflow(caller, turns=shared).send(b"first", Body(*[b"a"] * 9))  # type: ignore[arg-type]
    )
    await turns()
    async with asyncio.timeout(5):
        assert len(await read_all(shared)) == 12
    assert len(caller.written) == 4
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


async def read_all(shared: asyncio.Semaphore) -> list[bytes]:
    """What a caller that reads gets of a body of eleven pieces."""
    reader = Caller()
    for _ in range(12):
        reader.gate.release()
    await outflow(reader, turns=shared).send(b"first", Body(*[b"a"] * 11))  # type: ignore[arg-type]
    return reader.written


@pytest.mark.parametrize("promptly", [True, False])
async def test_however_many_fetches_there_are_the_loop_is_soon_free_for_others(promptly: bool) -> None:
    """Counts what is read and begun between two turns of somebody who is always ready to go on."""
    limit, done = 2, 0

    class Counted(Body):
        async def next(self) -> bytes | None:
            nonlocal done
            done += 1
            return await super().next()

    class Counting(Caller):
        async def write(self, message: bytes) -> None:
            nonlocal done
            done += 1
            if promptly:
                await asyncio.sleep(0)
            else:
                await super().write(message)

    shared = asyncio.Semaphore(limit)
    callers = [Counting() for _ in range(100)]
    sending = asyncio.gather(
        *(outflow(caller, turns=shared).send(b"first", Counted(*[b"a"] * 5)) for caller in callers)  # type: ignore[arg-type]
    )
    most = 0
    while not sending.done():
        done = 0
        await asyncio.sleep(0)
        most = max(most, done)
        for caller in callers:
            caller.gate.release()
    await sending
    # Of each turn: a piece is read and written, or the one before is written and one is read ahead.
    assert 1 <= most <= 2 * 2 * limit


async def test_a_caller_that_takes_nothing_is_left_with_what_it_has_taken() -> None:
    caller = Caller()
    for _ in range(2):
        caller.gate.release()
    flow = outflow(caller, 0.05)
    with pytest.raises(StalledError, match=r"nothing for 0.05 s, after 10 bytes; fetch again") as stalled:
        await flow.send(b"first", Body(b"a" * 10, b"b" * 10))  # type: ignore[arg-type]
    assert stalled.value.reason == errors_pb2.ERROR_REASON_DEADLINE
    assert flow.sent_bytes == 10


async def test_one_whose_place_is_taken_away_is_told_to_come_again_if_its_caller_takes_nothing() -> None:
    caller, place = Caller(), Place()
    caller.gate.release()
    sending = asyncio.create_task(
        outflow(caller, place=place).send(b"first", Body(b"a" * 10, b"b"))  # type: ignore[arg-type]
    )
    await turns()
    assert place.stalled_since is not None
    place.taken_away.set_result(None)
    with pytest.raises(StalledError, match=r"other fetches wait.* after 0 bytes; fetch again") as stalled:
        await sending
    assert stalled.value.reason == errors_pb2.ERROR_REASON_QUEUE_FULL
    assert stalled.value.retry_seconds == 1.0


@pytest.mark.parametrize("error", [RuntimeError("broken"), asyncio.CancelledError()])
async def test_a_write_that_breaks_says_so_by_whatever_exception(error: BaseException) -> None:
    caller = Caller()
    caller.error = error
    caller.gate.release()
    with pytest.raises(Refusal) as broken:
        await outflow(caller).send(b"first", Body(b"a"))  # type: ignore[arg-type]
    assert broken.value.reason == errors_pb2.ERROR_REASON_CALLER_LOST


async def test_a_disk_that_fails_ends_it_and_the_write_that_is_under_way() -> None:
    class Failing(Body):
        async def next(self) -> bytes | None:
            raise OSError("no such sector")

    caller = Caller()
    caller.gate.release()
    with pytest.raises(OSError, match="no such sector"):
        await outflow(caller).send(b"first", Failing())  # type: ignore[arg-type]
    assert caller.written == [b"first"]


async def test_a_cancelled_handler_leaves_no_write_behind() -> None:
    caller = Caller()
    before = asyncio.all_tasks()
    sending = asyncio.create_task(outflow(caller).send(b"first", Body(b"a")))  # type: ignore[arg-type]
    await turns()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await turns()
    assert asyncio.all_tasks() == before
