"""One run in a lane: read as a call of gRPC is."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import Any

import grpc
import pytest

from env_client.lane_frames import INITIAL_CREDIT, RunStatus
from env_client.lane_run import LaneRun
from env_client.statuses import env_error, rpc_error
from tests.helpers.scripted_end import End

MIB = 1024 * 1024
OK = RunStatus(0)


class Carrier:
    """Notes what it is told, and takes credit when it leaves by itself."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int | str]] = []
        self.riding: LaneRun | None = None
        """Has credit that leaves with something else."""

    def credit(self, number: int, run: LaneRun, *, pressing: bool) -> None:
        self.riding = None if pressing else run
        if pressing:
            self.told.append((number, run.claim()))

    def leave(self, number: int) -> None:
        self.told.append((number, "left"))


class Call:
    """A call of its own."""

    def __init__(self) -> None:
        self.cancelled = 0

    async def read(self) -> bytes:
        return b"by a call"

    def cancel(self) -> None:
        self.cancelled += 1


def run_of(carrier: Carrier, deadline: float | None = None) -> LaneRun:
    return LaneRun(asyncio.get_running_loop(), carrier, 7, deadline)


async def test_what_waits_is_read_at_once_and_then_the_end() -> None:
    run = run_of(Carrier())
    for piece in (b"a", b"", b"b", b"c"):
        run.append(piece)
    assert await run.read() == b"abc"
    run.append(b"d")
    run.end(OK)
    run.end(RunStatus(1))
    assert await run.read() == b"d"
    for _ in range(2):
        assert await run.read() is grpc.aio.EOF


async def test_a_reader_is_woken_once_for_all_that_comes_together() -> None:
    run = run_of(Carrier())
    reader = asyncio.create_task(run.read())
    await asyncio.sleep(0)
    run.append(b"a")
    run.append(b"b")
    assert await reader == b"ab"


async def test_what_is_read_at_once_is_bounded() -> None:
    run = run_of(Carrier())
    half = INITIAL_CREDIT // 2
    run.append(b"a" * half)
    run.append(b"b" * (half - 1))  # Within the credit by one byte, so one more may come, however big.
    run.append(b"c" * MIB)
    assert [len(await run.read()) for _ in range(2)] == [INITIAL_CREDIT - 1, MIB]


async def test_credit_is_given_back_in_lumps_for_what_was_read() -> None:
    carrier = Carrier()
    run, half = run_of(carrier), INITIAL_CREDIT // 2
    run.append(b"a" * (half - 1))
    await run.read()
    assert carrier.told == []
    run.append(b"b")
    assert carrier.told == []
    await run.read()
    assert carrier.told == [(7, half)]
    run.append(b"c" * half)
    run.end(OK)
    await run.read()
    assert carrier.told == [(7, half)]  # It has ended: nobody needs more.


async def test_half_a_lump_of_credit_leaves_with_something_else() -> None:
    carrier = Carrier()
    run, quarter = run_of(carrier), INITIAL_CREDIT // 4
    run.append(b"a" * (quarter - 1))
    await run.read()
    assert carrier.riding is None
    run.append(b"b")
    await run.read()
    assert carrier.riding is run
    run.append(b"c" * 5)
    await run.read()
    assert run.claim() == quarter + 5  # What was read when it leaves.
    assert run.claim() == 0
    assert carrier.told == []
    run.append(b"d" * (2 * quarter - 1))
    await run.read()
    run.append(b"e")
    await run.read()
    assert carrier.told == [(7, 2 * quarter)]


async def test_more_than_was_allowed_ends_it() -> None:
    carrier = Carrier()
    run = run_of(carrier)
    run.append(b"a" * (INITIAL_CREDIT - 1))
    run.append(b"b" * 2)
    run.append(b"c")
    run.append(b"d")
    assert carrier.told == [(7, "left")]
    assert len(await run.read()) == INITIAL_CREDIT + 1
    with pytest.raises(grpc.aio.AioRpcError, match="more of this run than it was allowed") as caught:
        await run.read()
    assert caught.value.code() is grpc.StatusCode.INTERNAL


async def test_a_reader_that_keeps_up_is_never_out_of_credit() -> None:
    carrier = Carrier()
    run = run_of(carrier)
    for _ in range(40):
        run.append(b"a" * (INITIAL_CREDIT // 2 + 5))
        await run.read()
    run.end(OK)
    assert await run.read() is grpc.aio.EOF
    assert sum(int(size) for _, size in carrier.told) == 40 * (INITIAL_CREDIT // 2 + 5)


@pytest.mark.parametrize("before", [b"", b"data"])
async def test_a_status_is_raised_as_of_a_call(before: bytes) -> None:
    class Context:
        def abort_with_status(self, status: Any) -> None:
            self.details = dict(status.trailing_metadata)["grpc-status-details-bin"]

    context: Any = Context()
    End(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_seconds=2).abort(context)
    run = run_of(Carrier())
    run.append(before)
    run.end(RunStatus(8, "full", context.details))
    if before:
        assert await run.read() == before
    for _ in range(2):
        with pytest.raises(grpc.RpcError) as caught:
            await run.read()
        error = env_error(caught.value)
        assert (error.code, error.reason, error.retry_after) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL", 2.0)
        assert str(error) == "RESOURCE_EXHAUSTED QUEUE_FULL: full"


def test_a_code_that_is_none_is_unknown() -> None:
    for code in (99, 2):
        error = env_error(rpc_error(code, "m"))
        assert (error.code, error.reason, str(error)) == (
            "UNKNOWN",
            "",
            "UNKNOWN (no word from the server): m",
        )


async def test_a_deadline() -> None:
    carrier = Carrier()
    run = run_of(carrier, asyncio.get_running_loop().time() + 0.01)
    with pytest.raises(grpc.RpcError) as caught:
        await run.read()
    error = env_error(caught.value)
    assert (error.code, error.reason) == ("DEADLINE_EXCEEDED", "")
    run.append(b"late")
    run.end(OK)
    with pytest.raises(grpc.RpcError):
        await run.read()
    assert carrier.told == [(7, "left")]


@pytest.mark.parametrize("how", ["ended", "cancelled", "handed on"])
async def test_what_is_over_holds_neither_its_carrier_nor_its_timer(how: str) -> None:
    loop = asyncio.get_running_loop()
    carrier = Carrier()
    run, watch = run_of(carrier, loop.time() + 100.0), weakref.ref(carrier)
    if how == "ended":
        run.end(OK)
    elif how == "cancelled":
        run.cancel()
    else:
        run.follow(Call())
    gc.disable()
    try:
        del carrier
        assert watch() is None
    finally:
        gc.enable()


async def test_cancelled() -> None:
    carrier = Carrier()
    run = run_of(carrier)
    reader = asyncio.create_task(run.read())
    await asyncio.sleep(0)
    for _ in range(2):
        run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    run.append(b"late")
    run.end(OK)
    with pytest.raises(asyncio.CancelledError):
        await run.read()
    assert carrier.told == [(7, "left")]


async def test_cancelled_when_it_has_ended_nobody_is_told() -> None:
    carrier = Carrier()
    run = run_of(carrier)
    run.append(b"a")
    run.end(OK)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run.read()
    assert carrier.told == []


async def test_a_reader_that_is_cancelled_as_data_comes_loses_none() -> None:
    run = run_of(Carrier())
    reader = asyncio.create_task(run.read())
    await asyncio.sleep(0)
    run.append(b"a")
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert await run.read() == b"a"


async def test_two_readers_are_refused() -> None:
    run = run_of(Carrier())
    reader = asyncio.create_task(run.read())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="two tasks read one run"):
        await run.read()
    run.append(b"a")
    assert await reader == b"a"


@pytest.mark.parametrize("waits", [False, True])
async def test_handed_on_to_a_call_of_its_own(waits: bool) -> None:
    carrier, call = Carrier(), Call()
    run = run_of(carrier, asyncio.get_running_loop().time() + waits * 100.0)
    reader = asyncio.ensure_future(run.read())
    if waits:
        await asyncio.sleep(0)
    run.follow(call)
    assert await reader == b"by a call"
    await asyncio.sleep(0)  # Its deadline has passed if it did not wait; that is the call's now.
    assert await run.read() == b"by a call"
    for _ in range(2):
        run.cancel()
    assert (call.cancelled, carrier.told) == (1, [])


def test_a_run_of_a_loop_that_is_closed_can_be_left() -> None:
    loop = asyncio.new_event_loop()
    run = LaneRun(loop, Carrier(), 7, None)
    reading = run.read()
    reading.send(None)
    loop.close()
    with contextlib.suppress(RuntimeError):  # Raised if somebody would be woken.
        run.cancel()
    with pytest.raises(asyncio.CancelledError):
        reading.throw(asyncio.CancelledError)
