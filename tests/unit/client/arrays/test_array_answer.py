"""Frames and descriptors: what a worker says is checked before anything is allocated for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from envtrio.v1.training_array_service_pb2 import ArrayDescriptor, ArrayLayout, FetchResponse
from hypothesis import given
from hypothesis import strategies as st

from env_client import ArrayProtocolError
from env_client.training_arrays.answer import Ask, checked_answer, parse_frame
from env_client.training_arrays.reference import ArrayReference
from tests.helpers.scripted_arrays import Branch, some_arrays

BRANCH = Branch(some_arrays())
WHOLE = Ask(ArrayReference.of(BRANCH.reference()), (), 0, 6)
PART = Ask(ArrayReference.of(BRANCH.reference()), (), 1, 3)


@given(st.binary(max_size=300))
def test_a_piece_is_found_by_hand_as_the_message_has_it(data: bytes) -> None:
    frame = parse_frame(FetchResponse(piece=data).SerializeToString())
    assert isinstance(frame, np.ndarray)
    assert frame.tobytes() == data


@pytest.mark.parametrize("size", [0, 127, 128, 2**14, 2**20, 2**21])
def test_pieces_of_all_lengths(size: int) -> None:
    frame = FetchResponse(piece=b"x" * size).SerializeToString()
    found = parse_frame(frame)
    assert isinstance(found, np.ndarray)
    assert len(found) == size
    assert not size or np.shares_memory(found, np.frombuffer(frame, np.uint8))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_frame_or_refused(data: bytes) -> None:
    try:
        found = parse_frame(data)
    except ArrayProtocolError:
        return
    message = FetchResponse.FromString(data)
    if isinstance(found, ArrayDescriptor):
        assert found == message.descriptor
    else:
        assert found.tobytes() == message.piece


@pytest.mark.parametrize("frame", [b"", b"\x12", b"\x12\x05abc", b"\x12\xff\xff\xff\xff\xff\x7f", b"\xff"])
def test_what_is_no_frame(frame: bytes) -> None:
    with pytest.raises(ArrayProtocolError, match=f"{len(frame)} bytes"):
        parse_frame(frame)


def test_a_piece_with_unknown_fields_is_a_piece() -> None:
    found = parse_frame(FetchResponse(piece=b"abc").SerializeToString() + b"\x98\x06\x01")
    assert isinstance(found, np.ndarray)
    assert found.tobytes() == b"abc"


def layouts(**changes: Any) -> list[ArrayLayout]:
    """The descriptor's arrays, but for some fields of routed_experts."""
    arrays = list(BRANCH.descriptor().arrays)
    fields = {"name": "routed_experts", "dtype": "<u2", "shape": [6, 2, 4], "size_bytes": 96, **changes}
    return [ArrayLayout(**fields), *arrays[1:]]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"token_start": 1}, "token range"),
        ({"token_end": 5}, "token range"),
        ({"arrays": []}, "arrays"),
        ({"arrays": layouts(name="other")}, "arrays"),
        ({"arrays": layouts() + layouts()}, "arrays"),
        ({"arrays": layouts(dtype="<i4")}, "dtype"),
        ({"arrays": layouts(dtype="O")}, "dtype"),
        ({"arrays": layouts(shape=[2**40, 2, 4], size_bytes=2**44)}, "shape"),
        ({"arrays": layouts(shape=[6, 8])}, "shape"),
        ({"arrays": layouts(shape=[])}, "shape"),
        ({"arrays": layouts(size_bytes=97)}, "size_bytes"),
        ({"arrays": layouts(size_bytes=2**63)}, "size_bytes"),
        ({"body_bytes": 2**60}, "body_bytes"),
        ({"body_bytes": 0}, "body_bytes"),
    ],
)
def test_a_descriptor_that_does_not_fit(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(ArrayProtocolError, match=f"the descriptor's {what}"):
        checked_answer(BRANCH.descriptor(**changes), WHOLE)


@pytest.mark.parametrize(
    "changes",
    [
        {"arrays": layouts(name="x" * 10_000) * 1000},
        {"arrays": layouts(dtype="\x1b[31m" + "u" * 10_000)},
        {"arrays": layouts(shape=[1] * 100_000)},
    ],
)
def test_what_is_said_of_it_is_short_and_printable(changes: dict[str, Any]) -> None:
    with pytest.raises(ArrayProtocolError) as caught:
        checked_answer(BRANCH.descriptor(**changes), WHOLE)
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()


def part_of(rows: int, sampled: int, ids: int) -> ArrayDescriptor:
    """A descriptor of a part of the branch."""
    arrays = BRANCH.arrays
    shapes = {"routed_experts": (rows, 2, 4), "top_logprobs.counts": (sampled,)}
    cut = {name: np.empty(shapes.get(name, (ids,)), array.dtype) for name, array in arrays.items()}
    return Branch(cut).descriptor(token_start=1, token_end=3)


def test_a_part() -> None:
    answer = checked_answer(part_of(2, 1, 2), PART)
    assert [spec.shape for spec in answer.arrays] == [(2, 2, 4), (2,), (2,), (1,)]
    for wrong in (part_of(3, 1, 2), part_of(2, 3, 2), part_of(2, 4, 2), part_of(2, 1, 7)):
        with pytest.raises(ArrayProtocolError, match="shape"):
            checked_answer(wrong, PART)


def test_estimates() -> None:
    size = sum(array.nbytes for array in BRANCH.arrays.values())
    assert WHOLE.estimated_bytes == size
    assert PART.estimated_bytes == size // 3
    empty = Branch(some_arrays(0, 0), tokens=0)
    assert Ask(ArrayReference.of(empty.reference()), (), 0, 0).estimated_bytes == 0
