"""What is laid together by hand is what protobuf writes."""

from __future__ import annotations

import pytest
from envtrio.v1 import delta_pb2
from hypothesis import given
from hypothesis import strategies as st

from env_worker.delta.frames import delimited, tag, varint

BORDERS = [0, 1, 2**7 - 1, 2**7, 2**14 - 1, 2**14, 2**21 - 1, 2**21, 2**32, 2**63, 2**64 - 1]


@given(st.integers(0, 2**64 - 1) | st.sampled_from(BORDERS))
def test_a_varint_is_that_of_protobuf(value: int) -> None:
    written = delta_pb2.TraceCounts(tokens=value).SerializeToString()
    # The field's number is 10, its type that of a varint; a zero is not written at all.
    assert (b"\x50" + varint(value) if value else b"") == written


def test_tags_are_those_of_protobuf() -> None:
    assert delta_pb2.TraceDelta(append={}).SerializeToString() == tag(4) + b"\0"
    assert tag(20) == b"\xa2\x01"


@pytest.mark.parametrize("length", [1, 2**7 - 1, 2**7, 2**14 - 1, 2**14, 2**21])
def test_a_field_is_that_of_protobuf(length: int) -> None:
    text = "x" * length
    field = delimited(tag(delta_pb2.TraceDelta.TRACE_ID_FIELD_NUMBER), text.encode())
    assert field == delta_pb2.TraceDelta(trace_id=text).SerializeToString()
