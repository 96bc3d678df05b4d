"""What a client may say in one message of a session."""

from __future__ import annotations

from typing import Any

import pytest
from envtrio.v1 import env_service_pb2 as pb

from env_broker import session_frames
from env_broker.held_request import HeldRequest
from env_broker.session_frames import (
    BIG_MESSAGE_BYTES,
    MAX_MORE,
    MAX_REQUEST_BYTES,
    Frame,
    Opening,
    read,
    unfolded,
)
from env_broker.status import Refusal

REQUEST = pb.RunRequest(request_id="1" * 32, protocol_generation=1, task_json="{}", session_id="2" * 32)
CONFIRM = pb.SessionRequest(confirm=pb.Confirm(request_ids=["0" * 32]))


def opening(**fields: Any) -> pb.SessionRequest:
    return pb.SessionRequest(open_run=pb.OpenRun(**{"run_number": 1, "request": REQUEST, **fields}))


def only(frame: pb.SessionRequest) -> Opening:
    [found] = unfolded(frame.SerializeToString())
    assert isinstance(found, Opening)
    return found


def refused(message: pb.SessionRequest) -> str:
    with pytest.raises(Refusal) as error:
        unfolded(message.SerializeToString())
    assert error.value.reason == "INVALID_REQUEST"
    return error.value.message


def test_more_frames_are_as_if_each_had_come_by_itself_in_order() -> None:
    leave = pb.SessionRequest(leave_run=pb.LeaveRun(run_number=1))
    message = opening()
    message.more.extend([CONFIRM, opening(run_number=2), leave])
    found: list[Frame] = unfolded(message.SerializeToString())
    kinds = [frame.number if isinstance(frame, Opening) else frame.WhichOneof("frame") for frame in found]
    assert kinds == [1, "confirm", 2, "leave_run"]


def test_a_run_that_is_opened_keeps_what_run_would_have_got() -> None:
    found = only(opening(credit_bytes=7, timeout_millis=1500))
    assert (found.number, found.credit, found.timeout) == (1, 7, 1.5)
    assert isinstance(found.request, HeldRequest)
    assert found.request.data == REQUEST.SerializeToString()
    assert (found.request.request_id, found.request.session_id) == ("1" * 32, "2" * 32)
    assert only(opening()).timeout is None
    assert only(opening(timeout_millis=0)).timeout == 0.0, "over already, not without one"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"protocol_generation": 2}, "PROTOCOL_GENERATION"), ({"task_json": "x" * 2**20}, "MESSAGE_TOO_LARGE")],
    ids=["generation", "size"],
)
def test_a_request_that_is_refused_ends_its_own_run(fields: dict[str, Any], reason: str) -> None:
    request = pb.RunRequest()
    request.MergeFrom(REQUEST)
    request.MergeFrom(pb.RunRequest(**fields))
    message = opening(request=request)
    message.more.add(open_run=pb.OpenRun(run_number=2, request=REQUEST))
    first, second = unfolded(message.SerializeToString())
    assert isinstance(first, Opening)
    assert isinstance(first.request, Refusal)
    assert first.request.reason == reason
    assert isinstance(second, Opening)
    assert isinstance(second.request, HeldRequest)


def test_a_request_may_be_as_large_as_the_limit() -> None:
    request = pb.RunRequest(request_id="1" * 32, protocol_generation=1)
    request.task_json = "x" * (MAX_REQUEST_BYTES - request.ByteSize() - 4)
    assert request.ByteSize() == MAX_REQUEST_BYTES
    assert isinstance(only(opening(request=request)).request, HeldRequest)


def test_malformed_messages_are_refused_naming_what_is_wrong() -> None:
    message = pb.SessionRequest()
    message.CopyFrom(CONFIRM)
    message.more.extend([CONFIRM] * MAX_MORE)
    assert len(unfolded(message.SerializeToString())) == MAX_MORE + 1
    message.more.add().CopyFrom(CONFIRM)
    assert f"more has {MAX_MORE + 1} frames or more, the limit is {MAX_MORE}" in refused(message)
    small = pb.SessionRequest(more=[pb.SessionRequest()] * 2_000)
    assert f"more has 2000 frames, the limit is {MAX_MORE}" in refused(small)
    assert "a frame with 1 more" in refused(
        pb.SessionRequest(more=[pb.SessionRequest(leave_run=pb.LeaveRun(), more=[CONFIRM])])
    )
    assert "more has an open" in refused(pb.SessionRequest(more=[pb.SessionRequest(open=pb.SessionOpen())]))
    with pytest.raises(Refusal, match="cannot be decoded"):
        unfolded(b"\xff")


@pytest.mark.parametrize(("size", "threads"), [(1_000, 0), (BIG_MESSAGE_BYTES + 1, 1)])
async def test_large_messages_are_parsed_in_a_thread(
    size: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[object] = []
    to_thread = session_frames.asyncio.to_thread  # type: ignore[attr-defined]

    async def noted(*arguments: Any) -> Any:
        begun.append(arguments)
        return await to_thread(*arguments)

    class Context:
        async def read(self) -> bytes:
            request = pb.RunRequest(protocol_generation=1, task_json="x" * size)
            return opening(request=request).SerializeToString()

    monkeypatch.setattr(session_frames.asyncio, "to_thread", noted)  # type: ignore[attr-defined]
    context: Any = Context()
    [found] = await read(context) or []
    assert isinstance(found, Opening)
    assert len(begun) == threads
