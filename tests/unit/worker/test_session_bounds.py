"""What is seen of a session's message before it is parsed."""

from __future__ import annotations

import time

import pytest
from envtrio.v1 import env_service_pb2 as pb
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from env_worker import session_bounds
from env_worker.delta.frames import delimited, tag, varint
from env_worker.session_bounds import MAX_FIELDS, MAX_MORE, SMALL_BYTES, check_bounds
from env_worker.status import Refusal

MORE, CONFIRM, OPEN_RUN, ID = tag(7), tag(2), tag(4), tag(1)
MANY = 8 * 1024 * 1024
WELL_FORMED = pb.Confirm(request_ids=["0" * 32] * 1024)


def padded(*frames: pb.SessionRequest) -> bytes:
    """A message of these frames and one more, which makes it large enough to be looked at."""
    request = pb.RunRequest(task_json="x" * SMALL_BYTES)
    message = pb.SessionRequest(open_run=pb.OpenRun(request=request), more=frames)
    return message.SerializeToString()


BOMBS = {
    "more": (b"\x3a\x00" * MANY, "`more` has 1025 or more frames, the limit is 1024"),
    "more, its tags in two bytes": (b"\xba\x00\x00" * MANY, "`more` has 1025 or more frames"),
    "more in more": (delimited(MORE, b"\x3a\x00" * MANY), "a frame in `more` has 1 or more in a `more`"),
    "more in more, behind a frame": (
        delimited(MORE, delimited(OPEN_RUN, b"") + b"\x3a\x00" * MANY),
        "a frame in `more` has 1 or more in a `more`",
    ),
    "one frame after another": (b"\x12\x00\x1a\x00" * MANY, f"over 4096 fields, the limit is {MAX_FIELDS}"),
    "one frame after another in more": (delimited(MORE, b"\x12\x00\x1a\x00" * MANY), "over 4096 fields"),
    "what nobody knows": (b"\xf8\x01\x01" * MANY, "over 4096 fields"),
    "ids": (
        delimited(CONFIRM, delimited(ID, b"0" * 32) * 100_000),
        "`confirm` has 100000 request_ids, the limit is 1024",
    ),
    "ids in more": (delimited(MORE, delimited(CONFIRM, delimited(ID, b"0" * 32) * 1025)), "1025 request_ids"),
    "ids of 31": (delimited(CONFIRM, delimited(ID, b"0" * 31) * 1025), "1025 request_ids"),
    "empty ids": (delimited(CONFIRM, delimited(ID, b"") * MANY), "over 4096 fields"),
    "34 bytes that are two ids": (
        delimited(CONFIRM, (delimited(ID, b"0" * 15) * 2) * 1024),
        "2048 request_ids",
    ),
    "empty ids in many frames": (
        delimited(MORE, delimited(CONFIRM, delimited(ID, b"") * 1024)) * 1024,
        "over 4096 fields",
    ),
}


@pytest.mark.parametrize(("data", "said"), BOMBS.values(), ids=BOMBS)
def test_what_would_be_much_once_parsed_is_refused_in_a_moment(data: bytes, said: str) -> None:
    began = time.process_time()
    with pytest.raises(Refusal) as refused:
        check_bounds(data)
    assert time.process_time() - began < 0.5
    assert said in refused.value.message
    assert refused.value.reason_name == "INVALID_REQUEST"


@pytest.mark.parametrize(
    "data",
    [
        b"\x3a" + b"\xff" * MANY,  # a length that has no end
        b"\xff" * MANY,
        varint(1 << 35 | int.from_bytes(MORE)) + b"\x00" * MANY,  # a tag of over 32 bits
        delimited(OPEN_RUN, b"x" * SMALL_BYTES)[:-1],
        delimited(OPEN_RUN, b"x" * SMALL_BYTES) + b"\x0d\x00",  # a number of 4 bytes that has one
        delimited(OPEN_RUN, b"x" * SMALL_BYTES) + b"\x08",
        delimited(MORE, delimited(OPEN_RUN, b"x" * SMALL_BYTES)[:-1]),
    ],
)
def test_what_is_no_message_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(DecodeError):
        check_bounds(data)
    with pytest.raises(DecodeError):
        pb.SessionRequest.FromString(data)


def test_groups_which_were_never_in_these_protos_are_not_looked_into() -> None:
    with pytest.raises(DecodeError, match="wire type 3"):
        check_bounds(b"\x3b\x3c" * MANY)


def test_small_messages_are_left_to_who_reads_them_parsed() -> None:
    check_bounds(b"\x3a\x00" * (SMALL_BYTES // 2))
    with pytest.raises(Refusal):
        check_bounds(b"\x3a\x00" * (SMALL_BYTES // 2) + b"\x3a\x00")


@pytest.mark.parametrize(
    "data",
    [
        padded(*[pb.SessionRequest(confirm=WELL_FORMED)] * MAX_MORE),
        padded(*[pb.SessionRequest(open_run=pb.OpenRun(run_number=1))] * MAX_MORE),
        padded(pb.SessionRequest(confirm=pb.Confirm(request_ids=["0" * 31] * 1024))),
        padded() + b"\xf9\x01" + b"\x3a" * 8 + b"\xfd\x01" + b"\x3a" * 4 + b"\xf8\x01\xff\x01",
        # A later client's frames may have a field more.
        padded() + delimited(MORE, delimited(OPEN_RUN, b"") + b"\xf8\x01\x01") * MAX_MORE,
        delimited(OPEN_RUN, delimited(tag(2), delimited(MORE, b"") * MANY)),
    ],
    ids=["confirms", "opens", "31 digits", "unknown", "unknown in each", "in a request"],
)
def test_what_is_allowed_passes(data: bytes) -> None:
    check_bounds(data)


def frames(confirmed: int = 40) -> st.SearchStrategy[pb.SessionRequest]:
    digits = st.text("0\n é", max_size=34)
    whole = st.just("0" * 32)
    ids = st.one_of(st.lists(whole, max_size=confirmed), st.lists(digits, max_size=confirmed))
    numbers = st.integers(0, 2**64 - 1)
    return st.one_of(
        st.builds(lambda ids: pb.SessionRequest(confirm=pb.Confirm(request_ids=ids)), ids),
        st.builds(lambda number: pb.SessionRequest(open_run=pb.OpenRun(run_number=number)), numbers),
        st.builds(lambda number: pb.SessionRequest(leave_run=pb.LeaveRun(run_number=number)), numbers),
        st.builds(lambda: pb.SessionRequest(goodbye=pb.SessionGoodbye())),
    )


@given(first=frames(), more=st.lists(frames(), max_size=12), limits=st.tuples(*[st.integers(1, 12)] * 2))
def test_it_refuses_exactly_what_is_over_a_limit(
    first: pb.SessionRequest, more: list[pb.SessionRequest], limits: tuple[int, int]
) -> None:
    message = pb.SessionRequest(more=more)
    message.MergeFrom(first)
    largest = max(len(frame.confirm.request_ids) for frame in (first, *more))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(("MAX_MORE", "MAX_CONFIRMED", "SMALL_BYTES"), (*limits, 0), strict=True):
            patch.setattr(session_bounds, name, value)
        try:
            check_bounds(message.SerializeToString())
        except Refusal:
            assert len(more) > limits[0] or largest > limits[1]
        else:
            assert len(more) <= limits[0]
            assert largest <= limits[1]
