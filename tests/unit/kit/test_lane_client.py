"""The client that the suites carry runs with: what it does, and which servers it does not let pass."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from envtrio.v1 import delta_pb2
from envtrio.v1 import env_service_pb2 as pb

from tests.helpers.guarantee import GuaranteeBroken
from tests.helpers.lane_client import CAPABILITY, Lane
from tests.helpers.lane_run import CREDIT

REPLY = delta_pb2.DeltaStream(reply=delta_pb2.RunReply())
OPENED = {"opened": pb.SessionOpened(capabilities=[CAPABILITY])}
ADMITTED = {"run_admitted": pb.RunAdmitted(run_number=1)}
OK = {"end_run": pb.EndRun(run_number=1)}


def data(size: int = 0) -> dict[str, Any]:
    """So many bytes of a run, or its reply."""
    text = delta_pb2.DeltaStream(deltas=[delta_pb2.TraceDelta(trace_id="x" * size)]) if size else REPLY
    return {"run_data": pb.RunData(run_number=1, data=text.SerializeToString())}


class PlayedCall:
    """A call whose other side the test plays."""

    def __init__(self) -> None:
        self.sent: list[pb.SessionRequest] = []
        self.closed = False
        self._come: asyncio.Queue[Any] = asyncio.Queue()
        self._news = asyncio.Event()

    def play(self, *frames: dict[str, Any]) -> None:
        """These come, in one message."""
        message = pb.SessionResponse(**frames[0])
        message.more.extend(pb.SessionResponse(**frame) for frame in frames[1:])
        self._come.put_nowait(message)

    def end(self, error: BaseException | None = None) -> None:
        """The stream ends."""
        self._come.put_nowait(error or grpc.aio.EOF)

    async def sends(self, kind: str) -> pb.SessionRequest:
        """Wait for a frame of that kind."""
        while not (found := [frame for frame in self.frames if frame.WhichOneof("frame") == kind]):
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 5)
        return found[0]

    @property
    def frames(self) -> list[pb.SessionRequest]:
        """All that was sent."""
        return [frame for message in self.sent for frame in (message, *message.more)]

    async def write(self, message: pb.SessionRequest) -> None:
        self.sent.append(message)
        self._news.set()

    async def read(self) -> Any:
        if isinstance(come := await self._come.get(), BaseException):
            raise come
        return come

    async def done_writing(self) -> None:
        self.closed = True

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    def cancel(self) -> None:
        self.end(asyncio.CancelledError())


class PlayedStub:
    """Its one session is `call`."""

    def __init__(self) -> None:
        self.call = PlayedCall()

    def Session(self) -> PlayedCall:
        return self.call


def lane_of(stub: PlayedStub) -> Lane:
    return Lane(stub, "a" * 32, 1)


ANSWERS: dict[str, Any] = {"confirm_answers": pb.ConfirmAnswers()}
NESTED: dict[str, Any] = {**ADMITTED, "more": [pb.SessionResponse(end_run=OK["end_run"])]}
BROKEN: dict[str, tuple[str, list[list[dict[str, Any]]]]] = {
    "no capability": ("SessionFrames", [[{"opened": pb.SessionOpened()}]]),
    "not opened": ("SessionFrames", [[ADMITTED]]),
    "nothing in a frame": ("SessionFrames", [[OPENED, {}]]),
    "answers that nobody asked for": ("SessionFrames", [[OPENED], [ANSWERS]]),
    "nested": ("SessionFrames", [[OPENED, NESTED]]),
    "too many": ("SessionFrames", [[OPENED, *[ADMITTED] * 1_025]]),
    "never opened": ("EndedOnce", [[OPENED], [{"end_run": pb.EndRun(run_number=7)}]]),
    "ended twice": ("EndedOnce", [[OPENED, ADMITTED, data()], [OK, OK]]),
    "data behind the end": ("EndedOnce", [[OPENED, ADMITTED, data()], [OK], [data()]]),
    "data without admission": ("AdmittedFirst", [[OPENED, data()]]),
    "admitted twice": ("AdmittedFirst", [[OPENED, ADMITTED, ADMITTED]]),
    "admitted behind data": ("AdmittedFirst", [[OPENED, ADMITTED, data(9)], [ADMITTED]]),
    "beyond the credit": ("CreditKept", [[OPENED, ADMITTED, data(CREDIT)], [data(1)]]),
    "its end with its reply": ("EndBehindItsReply", [[OPENED, ADMITTED, data(), OK]]),
}


@pytest.mark.parametrize(("promise", "messages"), BROKEN.values(), ids=BROKEN)
async def test_a_server_that_breaks_a_promise_is_found_out(
    promise: str, messages: list[list[dict[str, Any]]]
) -> None:
    stub = PlayedStub()
    lane = lane_of(stub)
    run = lane.start(pb.RunRequest(request_id="c" * 32))
    for message in messages:
        stub.call.play(*message)
    await asyncio.wait_for(lane.ended(), 5)
    assert await run.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.OK)
    with pytest.raises(GuaranteeBroken, match=f"broke {promise}: "):
        await lane.close()


async def test_nothing_is_opened_before_the_server_has_offered_it() -> None:
    stub = PlayedStub()
    lane = lane_of(stub)
    runs = [lane.start(pb.RunRequest(request_id=name * 32), timeout=2.5) for name in "ab"]
    await stub.call.sends("open")
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(stub.call.sent) == 1
    stub.call.play(OPENED)
    await stub.call.sends("open_run")
    assert len(stub.call.sent) == 2, "what is due leaves together"
    opened = [frame.open_run for frame in stub.call.frames[1:]]
    assert [(o.run_number, o.request.request_id[0], o.timeout_millis) for o in opened] == [
        (1, "a", 2500),
        (2, "b", 2500),
    ]
    await lane.close()
    assert {await run.code() for run in runs} == {grpc.StatusCode.CANCELLED}


async def test_a_run_is_read_to_its_status_and_pays_for_what_was_read() -> None:
    stub = PlayedStub()
    lane = lane_of(stub)
    run = lane.start(pb.RunRequest(request_id="a" * 32))
    stub.call.play(OPENED, ADMITTED, data(CREDIT // 4))
    await run.initial_metadata()
    first = await run.read()
    stub.call.play(data(CREDIT // 4))
    second = await run.read()
    back = (await stub.call.sends("run_credit")).run_credit
    assert back.credit_bytes == first.ByteSize() + second.ByteSize()
    stub.call.play(data())
    stub.call.play(OK)
    assert (await run.read()).HasField("reply")
    assert await run.read() is grpc.aio.EOF
    assert (await run.code(), (await run.told()).code) == (grpc.StatusCode.OK, 0)
    assert await lane_ends(lane, stub) == "OK"


async def lane_ends(lane: Lane, stub: PlayedStub) -> str:
    """Say goodbye, to a server that says nothing more."""
    leaving = asyncio.create_task(lane.goodbye())
    await stub.call.sends("goodbye")
    stub.call.end()
    status = await leaving
    assert stub.call.closed
    await lane.close()
    return status


async def test_a_run_that_is_left_is_over_at_once_and_its_end_is_still_waited_for() -> None:
    stub = PlayedStub()
    lane = lane_of(stub)
    run = lane.start(pb.RunRequest(request_id="a" * 32))
    stub.call.play(OPENED, ADMITTED, data(9))
    await run.initial_metadata()
    run.cancel()
    run.cancel()
    assert await run.code() is grpc.StatusCode.CANCELLED
    with pytest.raises(grpc.aio.AioRpcError):
        await run.read()
    await stub.call.sends("leave_run")
    stub.call.play(data(9), {"end_run": pb.EndRun(run_number=1, code=1, message="left")})
    assert (await run.told()).message == "left"
    assert [frame.WhichOneof("frame") for frame in stub.call.frames] == ["open", "open_run", "leave_run"]
    await lane.close()


async def test_a_stream_that_breaks_ends_all_its_runs() -> None:
    stub = PlayedStub()
    lane = lane_of(stub)
    runs = [lane.start(pb.RunRequest(request_id=name * 32)) for name in "ab"]
    stub.call.play(OPENED, ADMITTED, data(9))
    await runs[0].initial_metadata()
    nothing = grpc.aio.Metadata()
    stub.call.end(grpc.aio.AioRpcError(grpc.StatusCode.ABORTED, nothing, nothing, "superseded"))
    assert (await runs[0].read()).deltas, "what came is there"
    for run in runs:
        with pytest.raises(grpc.aio.AioRpcError, match="ABORTED: superseded") as ended:
            await run.read()
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(EOFError):
            await run.told()
    assert lane.over
    await lane.close()
