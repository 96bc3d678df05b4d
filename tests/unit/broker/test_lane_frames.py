"""Frames that are put together of bytes are what the stubs read."""

from __future__ import annotations

import pytest
from envtrio.v1.env_service_pb2 import LeaveRun, OpenRun, RunCredit, RunRequest, SessionRequest
from hypothesis import given
from hypothesis import strategies as st

from env_broker import lane_frames
from tests.helpers.raw_client import run_request

NUMBERS = st.integers(1, 2**64 - 1)
UNKNOWN = b"\xba\x3e\x03abc"
"""A field of a later version."""


@given(NUMBERS, st.none() | st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 127, 128, 16_383, 70_000]))
def test_a_run_is_opened_with_its_request_as_it_came(number: int, millis: int | None, size: int) -> None:
    request = UNKNOWN + run_request("1" * 32, task_json="x" * size)
    frame = lane_frames.open_run(number, request, credit=7, timeout_millis=millis)
    opening = SessionRequest.FromString(frame).open_run
    expected = OpenRun(
        run_number=number,
        request=RunRequest.FromString(request),
        timeout_millis=millis,
        credit_bytes=7,
    )
    assert opening == expected
    assert opening.HasField("timeout_millis") is (millis is not None)
    assert request in frame


@given(st.lists(st.tuples(st.booleans(), NUMBERS), min_size=1, max_size=30))
def test_frames_are_joined_in_their_order(wanted: list[tuple[bool, int]]) -> None:
    frames = [
        lane_frames.leave_run(number) if leave else lane_frames.run_credit(number, 9)
        for leave, number in wanted
    ]
    message = SessionRequest.FromString(lane_frames.joined(frames))
    more = list(message.more)
    message.ClearField("more")
    assert [message, *more] == [
        SessionRequest(leave_run=LeaveRun(run_number=number))
        if leave
        else SessionRequest(run_credit=RunCredit(run_number=number, credit_bytes=9))
        for leave, number in wanted
    ]


@pytest.mark.parametrize("size", [0, 127, 128, 300_000])
def test_a_joined_request_keeps_its_length(size: int) -> None:
    request = run_request("2" * 32, task_json="x" * size)
    frames = [lane_frames.open_run(n, request, credit=1, timeout_millis=None) for n in (1, 2)]
    message = SessionRequest.FromString(lane_frames.joined(frames))
    assert [len(part.open_run.request.task_json) for part in (message, *message.more)] == [size, size]
