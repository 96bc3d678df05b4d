"""What is seen of a message in a session's stream before it is parsed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from envtrio.v1 import env_service_pb2 as pb
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from env_broker import session_bounds
from env_broker.session_bounds import MAX_FIELDS, MAX_LISTED, MAX_MORE, REQUEST, RESPONSE, BoundsError
from env_broker.session_frames import unfolded
from env_broker.status import Refusal
from env_broker.worker_messages import UnreadableError, parsed

if TYPE_CHECKING:
    from env_broker.session_bounds import Bounds

MIB = 2**20
LARGE = b"\x22\xff\xff\x01" + bytes(2**15 - 1)  # a field that is not looked into
CONFIRM = pb.Confirm(request_ids=["0" * 32] * MAX_LISTED)
SECONDS = 2.0
"""What takes a few milliseconds here takes a second, and gigabytes, when it is parsed."""


def varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80]) + varint(number >> 7) if number > 0x7F else bytes([number])


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def fault(data: bytes, bounds: Bounds = REQUEST) -> BoundsError:
    began = time.process_time()
    with pytest.raises(BoundsError) as error:
        bounds.check(data)
    assert time.process_time() - began < SECONDS
    return error.value


BOMBS = {
    "empty more": (b"\x3a\x00" * (32 * MIB), "more"),
    "more with long tags": (b"\xba\x80\x00\x80\x00" * (12 * MIB), "more"),
    "more in more": (field(7, b"\x3a\x00" * (32 * MIB)), "more.more"),
    "more in more behind a frame": (field(7, field(6, b"") + b"\x3a\x00" * MIB), "more.more"),
    "more in each more": (field(7, field(6, bytes(300)) + field(7, b"") * 300) * 1_024, "more.more"),
    "one frame often": (b"\x12\x00" * (32 * MIB), "frame"),
    "one frame often in more": (field(7, b"\x12\x00" * (32 * MIB)), "frame"),
    "unknown fields": (b"\xa0\x06\x00" * (20 * MIB), "frame"),
    "unknown fields in more": (field(7, b"\xa0\x06\x00" * MIB), "frame"),
    "ids": (field(2, field(1, b"0" * 32) * 1_900_000), "confirm.request_ids"),
    "ids in more": (field(7, field(2, field(1, b"0" * 32) * 1_025)), "confirm.request_ids"),
    "ids in two lists of a frame": (field(2, field(1, b"0" * 32) * 1_000) * 2, "confirm.request_ids"),
    "short ids": (field(2, field(1, b"0" * 31) * 1_025), "confirm.request_ids"),
    "empty ids": (field(2, b"\x0a\x00" * (32 * MIB)), "frame"),
    "empty ids in each more": (field(7, field(2, b"\x0a\x00" * 1_000)) * 1_024, "frame"),
    "a group": (LARGE + b"\x0b" + b"\x3a\x00" * MIB + b"\x0c", "frame"),
    "cut off": (LARGE + b"\x3a\x05\x00", "frame"),
    "cut off in more": (field(7, LARGE + b"\x3a\x05\x00") + LARGE, "frame"),
    "a number without an end": (b"\xff" * MIB, "frame"),
    "half a number": (LARGE + b"\x80", "frame"),
    "a fixed number cut off": (LARGE + b"\xa1\x06\x00", "frame"),
}


@pytest.mark.parametrize(("data", "what"), BOMBS.values(), ids=BOMBS)
def test_what_would_be_much_is_refused_before_it_is_parsed(data: bytes, what: str) -> None:
    error = fault(data)
    assert error.field == what
    if error.counts:
        assert error.counts["value"] > error.counts["limit"]
        assert f"the limit is {error.counts['limit']}" in str(error)
    with pytest.raises(Refusal) as refused:
        unfolded(data)
    assert refused.value.message == str(error)
    assert refused.value.reason == "INVALID_REQUEST"
    assert refused.value.metadata["field"] == what


async def test_a_workers_message_is_bounded_likewise() -> None:
    bombs = {
        "more has 1025 frames or more": b"\x32\x00" * (32 * MIB),
        "more has a frame with more": field(6, b"\x32\x00" * MIB),
        "confirm_answers has 1025 answers": field(2, field(1, bytes(3)) * 1_025 + field(9, bytes(2**14))),
        f"{MAX_FIELDS + 1} fields or more": field(6, field(2, b"\x0a\x00" * 1_000)) * 1_024,
    }
    for said, data in bombs.items():
        assert said in str(fault(data, RESPONSE))
        with pytest.raises(UnreadableError, match=said):
            await parsed(data)
    RESPONSE.check(b"\x3a\x00" * 4_096)  # which is none of its fields, and few enough


def sized(message: Message) -> bytes:
    data = message.SerializeToString()
    assert len(data) > session_bounds.SMALL_BYTES
    return data


def test_what_is_allowed_passes() -> None:
    opening = pb.SessionRequest(open_run=pb.OpenRun(request=pb.RunRequest(task_json="x" * 300)))
    for frame in (pb.SessionRequest(confirm=CONFIRM), opening):
        message = pb.SessionRequest()
        message.CopyFrom(frame)
        message.more.extend([frame] * MAX_MORE)
        REQUEST.check(sized(message))
    answer = pb.ConfirmAnswer(request_id="0" * 32, outcome=pb.CONFIRM_OUTCOME_CONFIRMED)
    RESPONSE.check(
        sized(pb.SessionResponse(confirm_answers=pb.ConfirmAnswers(answers=[answer] * MAX_LISTED)))
    )
    data = pb.SessionResponse(run_data=pb.RunData(data=b"\x32\x00" * 300))
    RESPONSE.check(sized(pb.SessionResponse(run_data=data.run_data, more=[data] * MAX_MORE)))


def test_what_a_later_version_adds_passes() -> None:
    added = varint(200 << 3) + b"\x7f" + field(201, b"new") + varint(202 << 3 | 5) + bytes(4)
    added += varint(203 << 3 | 1) + bytes(8)
    ids = field(2, field(1, b"0" * 32) * 100 + field(9, b"new"))
    data = LARGE + added + field(7, ids + added) * 9
    REQUEST.check(data)
    assert len(unfolded(data.removeprefix(LARGE) + field(6, b""))) == 10


def test_small_messages_are_left_to_who_has_them_parsed() -> None:
    small = b"\x3a\x00" * (session_bounds.SMALL_BYTES // 2)
    REQUEST.check(small)
    fault(small + b"\x3a\x00")
    with pytest.raises(Refusal, match="more has 8192 frames, the limit is 1024"):
        unfolded(small)


pieces = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [b"\x3a\x00", b"\x12\x02\x0a\x00", b"\x32\x02\x08\x01", b"\xba\x00\x00", b"\x0b", b"\xa1\x06"]
    ),
    st.builds(field, st.integers(1, 2**29 - 1), st.binary(max_size=9)),
    st.lists(st.sampled_from(["0" * 32, "0" * 31, ""]), max_size=5).map(
        lambda ids: pb.SessionRequest(confirm=pb.Confirm(request_ids=ids)).SerializeToString()
    ),
)
frames = st.lists(pieces, max_size=4).map(b"".join)


@given(st.lists(frames | frames.map(lambda frame: field(7, frame)), max_size=8).map(b"".join))
def test_it_agrees_with_what_is_parsed(data: bytes) -> None:
    """Whatever the bytes: what passes has no more than it may, and what is refused is none or has."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("SMALL_BYTES", 0),
            ("_SMALL_FRAME_BYTES", 0),
            ("MAX_MORE", 3),
            ("MAX_LISTED", 4),
        ):
            patch.setattr(session_bounds, name, value)
        try:
            REQUEST.check(data)
            refused = None
        except BoundsError as error:
            refused = error
    try:
        message = pb.SessionRequest.FromString(data)
    except DecodeError:
        return  # and would be refused then
    found = (message, *message.more)
    listed = max(len(frame.confirm.request_ids) for frame in found)
    if refused is None:
        assert len(message.more) <= 3
        assert listed <= 4
        assert not any(frame.more for frame in message.more)
    elif refused.field == "more.more":
        assert any(frame.more for frame in message.more)
    elif refused.field == "more":
        assert len(message.more) > 3
