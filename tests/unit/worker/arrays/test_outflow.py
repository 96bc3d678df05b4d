"""Pieces on their way to a caller, written by hand as protobuf would write them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from envtrio.v1 import errors_pb2, training_array_service_pb2

from env_worker.arrays.outflow import Outflow, framed
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


def outflow(caller: Caller, stall_seconds: float = 60.0) -> Outflow:
    context: Any = caller
    return Outflow(context, stall_seconds)


async def test_the_next_piece_is_read_while_one_is_written_and_no_more_than_that() -> None:
    caller, body = Caller(), Body(b"a" * 10, b"b" * 10, b"c" * 10)
    sending = asyncio.create_task(outflow(caller).send(b"first", body))  # type: ignore[arg-type]
    await turns()
    assert caller.written == [b"first"]
    assert len(body.rest) == 2, "one is ready"
    caller.gate.release()
    await turns()
    assert caller.written == [b"first", framed(b"a" * 10)]
    assert len(body.rest) == 1
    for _ in range(3):
        caller.gate.release()
    await sending
    assert caller.written[-1] == framed(b"c" * 10)


async def test_a_caller_that_takes_nothing_is_left_with_what_it_has_taken() -> None:
    caller = Caller()
    for _ in range(2):
        caller.gate.release()
    flow = outflow(caller, 0.05)
    with pytest.raises(Refusal, match=r"nothing for 0.05 s, after 10 bytes; fetch again") as stalled:
        await flow.send(b"first", Body(b"a" * 10, b"b" * 10))  # type: ignore[arg-type]
    assert stalled.value.reason == errors_pb2.ERROR_REASON_DEADLINE
    assert flow.sent_bytes == 10


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
