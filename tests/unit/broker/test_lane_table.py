"""The runs of one stream: what is sent in which order, and what a worker may not send."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest
from envtrio.v1.env_service_pb2 import (
    ConfirmAnswers,
    EndRun,
    RunAdmitted,
    RunData,
    RunRequest,
    SessionOpened,
    SessionRequest,
    SessionResponse,
)

from env_broker.held_request import HeldRequest
from env_broker.lane_frames import MAX_FRAMES, MESSAGE_BYTES
from env_broker.lane_run import CREDIT_BYTES, LUMP_BYTES, LaneRun
from env_broker.lane_table import LaneFaultError, LaneTable
from tests.helpers.raw_client import run_request

if TYPE_CHECKING:
    from env_broker.worker_call import WorkerCall

FALLEN_BACK: list[str] = []
NO_CALL = f"{9:032x}"


def by_run(request: HeldRequest, _: float | None) -> WorkerCall:
    if request.request_id == NO_CALL:
        raise RuntimeError("the channel is closed")
    FALLEN_BACK.append(request.request_id)
    return None  # type: ignore[return-value]


def run_in(table: LaneTable, size: int = 0, number: int = 0) -> LaneRun:
    data = run_request(f"{number:032x}", task_json="x" * size)
    run = LaneRun(table, HeldRequest(RunRequest.FromString(data), data), None, by_run)
    table.due(run)
    return run


def frames(message: bytes) -> list[str]:
    """Kinds and numbers."""
    first = SessionRequest.FromString(message)
    kinds = []
    for frame in (first, *first.more):
        kind = frame.WhichOneof("frame")
        assert kind is not None
        kinds.append(f"{kind} {getattr(frame, kind).run_number}")
    return kinds


def table() -> LaneTable:
    return LaneTable(lambda: None)


async def test_what_is_due_leaves_together_in_its_order() -> None:
    lane = table()
    runs = [run_in(lane) for _ in range(3)]
    assert frames(lane.next_message()) == ["open_run 1", "open_run 2", "open_run 3"]
    assert lane.next_message() == b""
    runs[2].cancel()
    lane.take(SessionResponse(run_data=RunData(run_number=1, data=bytes(CREDIT_BYTES))))
    await runs[0].read()
    run_in(lane)
    assert frames(lane.next_message()) == ["leave_run 3", "run_credit 1", "open_run 4"]
    assert lane.next_message() == b""


async def test_credit_that_is_not_pressing_leaves_with_what_is() -> None:
    woken: list[None] = []
    lane = LaneTable(lambda: woken.append(None))
    run = run_in(lane)
    lane.next_message()
    woken.clear()
    for _ in range(2):
        lane.take(SessionResponse(run_data=RunData(run_number=1, data=bytes(LUMP_BYTES // 2))))
        await run.read()
        if not woken:
            assert (lane.waiting, lane.next_message()) == (1, b"")
    assert (len(woken), frames(lane.next_message())) == (1, ["run_credit 1"])
    lane.take(SessionResponse(run_data=RunData(run_number=1, data=bytes(LUMP_BYTES // 2))))
    await run.read()
    assert lane.next_message() == b""
    run_in(lane)
    assert frames(lane.next_message()) == ["run_credit 1", "open_run 2"]
    assert (lane.waiting, lane.next_message()) == (0, b"")


async def test_a_message_has_its_size_and_a_larger_frame_goes_alone() -> None:
    lane = table()
    sizes = [0, MESSAGE_BYTES // 2, MESSAGE_BYTES // 2, 0, 3 * MESSAGE_BYTES, 0]
    for size in sizes:
        run_in(lane, size)
    messages = []
    while message := lane.next_message():
        messages.append(frames(message))
    assert messages == [
        ["open_run 1", "open_run 2"],
        ["open_run 3", "open_run 4"],
        ["open_run 5"],
        ["open_run 6"],
    ]


async def test_a_message_has_so_many_frames_and_no_more() -> None:
    lane = table()
    for _ in range(MAX_FRAMES + 1):
        run_in(lane)
    assert [len(frames(lane.next_message())) for _ in range(2)] == [MAX_FRAMES, 1]


async def test_a_run_that_was_left_before_it_was_sent_leaves_nothing() -> None:
    lane = table()
    runs = [run_in(lane) for _ in range(3)]
    runs[1].cancel()
    assert lane.waiting == 2
    assert frames(lane.next_message()) == ["open_run 1", "open_run 2"]
    runs[0].cancel()
    runs[0].cancel()
    assert frames(lane.next_message()) == ["leave_run 1"]
    assert len(lane) == 1


async def test_a_run_that_has_ended_gives_no_credit_and_is_not_left() -> None:
    lane = table()
    run = run_in(lane)
    lane.next_message()
    lane.take(SessionResponse(run_data=RunData(run_number=1, data=bytes(CREDIT_BYTES))))
    await run.read()
    assert lane.waiting == 1
    lane.take(SessionResponse(end_run=EndRun(run_number=1)))
    run.cancel()
    assert lane.next_message() == b""
    assert (len(lane), lane.waiting) == (0, 0)


async def test_further_frames_come_as_if_each_were_alone() -> None:
    lane = table()
    one, two = run_in(lane), run_in(lane)
    lane.next_message()
    lane.take(
        SessionResponse(
            run_admitted=RunAdmitted(run_number=1),
            more=[
                SessionResponse(run_data=RunData(run_number=2, data=b"2")),
                SessionResponse(),  # of a later version
                SessionResponse(run_data=RunData(run_number=1, data=b"1")),
                SessionResponse(end_run=EndRun(run_number=2)),
            ],
        )
    )
    assert (await one.admitted(), await one.read()) == (True, b"1")
    assert (await two.admitted(), await two.read(), await two.read()) == (True, b"2", None)


async def test_what_comes_of_a_run_that_was_left_or_has_ended_means_nothing() -> None:
    lane = table()
    left, ended = run_in(lane), run_in(lane)
    lane.next_message()
    left.cancel()
    lane.take(SessionResponse(end_run=EndRun(run_number=2)))
    for number in (1, 2):
        lane.take(SessionResponse(run_admitted=RunAdmitted(run_number=number)))
        lane.take(SessionResponse(run_data=RunData(run_number=number, data=bytes(3 * CREDIT_BYTES))))
        lane.take(SessionResponse(run_data=RunData(run_number=number, data=b"x")))
        lane.take(SessionResponse(end_run=EndRun(run_number=number, code=14)))
    assert await ended.read() is None


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (SessionResponse(opened=SessionOpened()), "opened came"),
        (SessionResponse(confirm_answers=ConfirmAnswers()), "confirm_answers came"),
        (SessionResponse(run_data=RunData(run_number=2, data=b"x")), "run number 2 was never opened"),
        (SessionResponse(run_admitted=RunAdmitted(run_number=0)), "run number 0 was never opened"),
        (SessionResponse(end_run=EndRun(run_number=2**63)), "the last one is 1"),
        (SessionResponse(end_run=EndRun(run_number=1, code=2, message="x" * 9_000)), "9000 bytes"),
        (SessionResponse(end_run=EndRun(run_number=1, status_details=b"x" * 9_000)), "9000 bytes"),
        (SessionResponse(more=[SessionResponse(more=[SessionResponse()])]), "further frames itself"),
        (SessionResponse(more=[SessionResponse()] * 1_025), "has 1025 further frames"),
        (
            SessionResponse(more=[SessionResponse(run_data=RunData(run_number=1, data=bytes(200_000)))] * 3),
            "without credit",
        ),
    ],
)
async def test_what_makes_no_sense_is_named(message: SessionResponse, fault: str) -> None:
    lane = table()
    run_in(lane)
    lane.next_message()
    with pytest.raises(LaneFaultError, match=fault):
        lane.take(message)


@pytest.mark.parametrize("fall_back", [False, True])
async def test_the_end_of_the_stream_ends_what_it_carried(fall_back: bool) -> None:
    FALLEN_BACK.clear()
    lane = table()
    carried, left = run_in(lane), run_in(lane)
    lane.next_message()
    left.cancel()
    unsent = run_in(lane, number=7)
    lane.end(grpc.StatusCode.UNAVAILABLE, "it broke", fall_back=fall_back)
    for run in (carried,) if fall_back else (carried, unsent):
        with pytest.raises(grpc.aio.AioRpcError, match="it broke"):
            await run.read()
    with pytest.raises(asyncio.CancelledError):
        await left.read()
    assert len(FALLEN_BACK) == fall_back
    assert (len(lane), lane.waiting, lane.next_message()) == (0, 0, b"")
    carried.cancel()
    assert lane.waiting == 0


async def test_a_run_that_cannot_fall_back_leaves_no_other_waiting() -> None:
    FALLEN_BACK.clear()
    lane = table()
    first = run_in(lane, number=9)
    run_in(lane, number=7)
    waits = asyncio.create_task(first.admitted())
    await asyncio.sleep(0)
    lane.end(grpc.StatusCode.UNAVAILABLE, "it was not opened", fall_back=True)
    assert [f"{7:032x}"] == FALLEN_BACK
    assert await asyncio.wait_for(waits, 10) is False
    with pytest.raises(grpc.aio.AioRpcError, match="not opened; and by Run: RuntimeError: the channel is"):
        await first.read()
