"""One run of a lane: what its reader is given, when the worker gets credit, how it ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from envtrio.v1.env_service_pb2 import EndRun, RunRequest, SessionRequest

from env_broker import lane_run
from env_broker.held_request import HeldRequest
from env_broker.lane_run import CREDIT_BYTES, JOINED_BYTES, LUMP_BYTES, LaneRun, OverdrawnError
from env_broker.status import error_reason
from tests.helpers.raw_client import run_request
from tests.helpers.scripted_worker import Abort

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

    from env_broker.worker_call import WorkerCall

SECONDS = 10.0


class Carrier:
    """Notes what the run asks of it."""

    def __init__(self) -> None:
        self.dues = 0
        self.rides = 0
        """Frames that wait for another to leave."""
        self.leaves = 0

    def due(self, run: LaneRun, *, pressing: bool = True) -> None:
        if pressing:
            self.dues += 1
        else:
            self.rides += 1

    def leave(self, run: LaneRun) -> None:
        self.leaves += 1


class ByRun:
    """A call of its own, which notes what it was given."""

    def __init__(self) -> None:
        self.requests: list[tuple[bytes, float | None]] = []
        self.cancelled = False

    def __call__(self, request: HeldRequest, timeout: float | None) -> WorkerCall:
        self.requests.append((request.data, timeout))
        return self

    async def admitted(self) -> bool:
        return True

    async def read(self) -> bytes | None:
        return b"by run"

    def cancel(self) -> None:
        self.cancelled = True


class Scene:
    """A run that was sent."""

    def __init__(self, timeout: float | None = None) -> None:
        self.data = run_request("3" * 32)
        self.carrier, self.by_run = Carrier(), ByRun()
        request = HeldRequest(RunRequest.FromString(self.data), self.data)
        self.run = LaneRun(self.carrier, request, timeout, self.by_run)

    def sent(self) -> Scene:
        self.opened = SessionRequest.FromString(self.run.opening(1)).open_run
        return self


async def soon(work: Awaitable[Any]) -> Any:
    """Its result; it must be there or come."""
    return await asyncio.wait_for(work, SECONDS)


async def asleep(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task of it that has come to where it waits."""
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_what_waits_is_read_at_once_and_joined() -> None:
    run = Scene().sent().run
    for data in (b"a", b"", b"b"):
        run.receive(data)
    assert await soon(run.read()) == b"ab"
    reading = await asleep(run.read())
    run.receive(b"c")
    run.receive(b"d")
    run.ended(EndRun())
    assert await soon(reading) == b"cd"
    assert await soon(run.read()) is None
    assert await soon(run.read()) is None


async def test_messages_are_joined_up_to_a_mebibyte_and_a_larger_one_goes_alone() -> None:
    run = Scene().sent().run
    sizes = [1, CREDIT_BYTES - 2, 2 * JOINED_BYTES]
    for size in sizes:
        run.receive(bytes(size))
    assert [len(await soon(run.read())) for _ in range(2)] == [CREDIT_BYTES - 1, 2 * JOINED_BYTES]


async def test_credit_is_given_in_lumps_and_a_short_run_costs_none() -> None:
    scene = Scene().sent()
    run, half = scene.run, CREDIT_BYTES // 2
    assert scene.opened.credit_bytes == CREDIT_BYTES
    run.receive(bytes(half - 1))
    assert scene.carrier.dues == 0, "nobody has read it"
    await soon(run.read())
    assert scene.carrier.dues == 0, "it is not worth a message"
    run.receive(b"x")
    await soon(run.read())
    assert scene.carrier.dues == 1
    assert run.claim() == half
    assert run.claim() == 0
    run.receive(bytes(CREDIT_BYTES))
    run.ended(EndRun())
    await soon(run.read())
    assert scene.carrier.dues == 1, "it has ended"


async def test_half_a_lump_goes_with_what_leaves_anyway() -> None:
    scene = Scene().sent()
    run, half = scene.run, LUMP_BYTES // 2
    run.receive(bytes(half - 1))
    await soon(run.read())
    assert (scene.carrier.rides, scene.carrier.dues) == (0, 0), "it is not worth a frame"
    run.receive(b"x")
    await soon(run.read())
    assert (scene.carrier.rides, scene.carrier.dues) == (1, 0)
    run.receive(b"y")
    await soon(run.read())
    assert run.claim() == half + 1, "what was read when it leaves"


async def test_the_last_of_the_credit_lets_one_message_through_whatever_its_size() -> None:
    run = Scene().sent().run
    run.receive(bytes(CREDIT_BYTES - 1))
    run.receive(bytes(3 * CREDIT_BYTES))
    with pytest.raises(OverdrawnError, match="5 bytes of run number 1 came without credit"):
        run.receive(bytes(5))
    assert len(await soon(run.read())) == run.claim() == 4 * CREDIT_BYTES - 1
    run.receive(bytes(5))


@pytest.mark.parametrize("by", ["admission", "data"])
async def test_it_is_admitted_when_the_worker_says_so_or_sends_of_it(by: str) -> None:
    run = Scene().sent().run
    waiting = await asleep(run.admitted())
    if by == "data":
        run.receive(b"a")
    else:
        run.admit()
    run.ended(EndRun(code=13))
    assert await soon(waiting) is True, "although it has ended meanwhile"


async def test_a_refusal_is_no_admission_and_keeps_its_status() -> None:
    run = Scene().sent().run
    waiting = await asleep(run.admitted())
    abort = Abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", "full: ö")
    run.ended(EndRun(code=8, message="full: ö", status_details=abort.details()[0][1]))
    assert await soon(waiting) is False
    for _ in range(2):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await soon(run.read())
        assert (refused.value.code(), refused.value.details()) == (abort.code, "full: ö")
        assert error_reason(tuple(refused.value.trailing_metadata())) == "QUEUE_FULL"


@pytest.mark.parametrize(("number", "code"), [(14, "UNAVAILABLE"), (99, "UNKNOWN"), (2**32 - 1, "UNKNOWN")])
async def test_what_came_before_a_bad_end_is_read_before_it(number: int, code: str) -> None:
    run = Scene().sent().run
    run.receive(b"a")
    run.ended(EndRun(code=number))
    run.broke(grpc.StatusCode.INTERNAL, "too late")
    assert await soon(run.read()) == b"a"
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await soon(run.read())
    assert ended.value.code().name == code
    assert error_reason(tuple(ended.value.trailing_metadata())) is None


async def test_a_cancel_ends_the_reader_at_once_and_is_said_once() -> None:
    scene = Scene().sent()
    reading = await asleep(scene.run.read())
    for _ in range(2):
        scene.run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(reading)
    assert scene.carrier.leaves == 1
    for again in (scene.run.read, scene.run.admitted):
        with pytest.raises(asyncio.CancelledError):
            await again()


async def test_a_cancel_drops_what_nobody_has_read() -> None:
    run = Scene().sent().run
    run.receive(b"a")
    run.ended(EndRun())
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run.read()


async def test_a_reader_that_is_cancelled_loses_nothing() -> None:
    run = Scene().sent().run
    reading = await asleep(run.read())
    run.receive(b"a")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await soon(run.read()) == b"a"


@pytest.mark.parametrize("sent", [False, True])
async def test_a_deadline_ends_it_here_and_the_worker_is_told(sent: bool) -> None:
    scene = Scene(0.02)
    if sent:
        assert 1 <= scene.sent().opened.timeout_millis <= 20
    assert await soon(scene.run.admitted()) is False
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await soon(scene.run.read())
    assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (scene.carrier.leaves, scene.run.left) == (1, True)


@pytest.mark.parametrize(("timeout", "millis"), [(None, 0), (1e12, 0), (3_600.0, 3_600_000), (-1.0, 1)])
async def test_the_worker_hears_of_the_deadline(timeout: float | None, millis: int) -> None:
    scene = Scene(timeout).sent()
    assert scene.opened.timeout_millis == pytest.approx(millis, abs=1_000)
    assert scene.opened.HasField("timeout_millis") is (millis > 0)
    scene.run.cancel()


@pytest.mark.parametrize("timeout", [None, 60.0])
async def test_what_was_never_sent_falls_back_to_a_call_of_its_own(timeout: float | None) -> None:
    scene = Scene(timeout)
    waiting = await asleep(scene.run.admitted())
    scene.run.fall_back()
    assert await soon(waiting) is True
    assert await soon(scene.run.read()) == b"by run"
    [(data, left)] = scene.by_run.requests
    assert data == scene.data
    assert left is None if timeout is None else 59 < (left or 0) <= 60
    scene.run.cancel()
    assert scene.by_run.cancelled
    assert scene.carrier.leaves == 0


async def test_the_request_is_let_go_of_when_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_run, "CREDIT_BYTES", 1)
    scene = Scene()
    assert scene.run.weight > len(scene.data)
    assert scene.sent().run.weight < len(scene.data) + 20
    assert scene.opened.request == RunRequest.FromString(scene.data)
