"""Training arrays: validated, converted exactly or not at all, read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from env_worker.domain import TRAINING_ARRAY_FIELDS, SamplingMask, TopLogprobs
from env_worker.domain.arrays import (
    bool_vector,
    float32_vector,
    int32_vector,
    routed_experts_array,
    uniform_bools,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def test_the_fields_that_never_stream() -> None:
    assert TRAINING_ARRAY_FIELDS == ("routed_experts", "sampling_mask", "top_logprobs")


@given(st.lists(st.integers(-(2**40), 2**40)), st.sampled_from([list, np.array]))
def test_int32_vector_keeps_every_value_or_refuses(values: list[int], kind: type) -> None:
    if all(-(2**31) <= value < 2**31 for value in values):
        vector = int32_vector(kind(values), "token_ids")
        assert vector.dtype == np.int32
        assert vector.tolist() == values
        assert not vector.flags.writeable
    else:
        with pytest.raises(ValueError, match="token_ids holds"):
            int32_vector(kind(values), "token_ids")


@pytest.mark.parametrize("values", [[1.5], [2**80], ["a"], [[1, 2]], [[1], [1, 2]], [None], 3, [True]])
def test_int32_vector_refuses_what_is_not_a_vector_of_integers(values: object) -> None:
    with pytest.raises(ValueError, match="token_ids"):
        int32_vector(values, "token_ids")  # type: ignore[arg-type]


def test_vectors_of_streamed_fields_are_copies_and_the_callers_array_stays_writable() -> None:
    mine = np.arange(3, dtype=np.int32)
    vector = int32_vector(mine, "token_ids")
    mine[0] = 9
    assert vector.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        vector[0] = 1


@pytest.mark.parametrize("share", [memoryview, np.asarray, lambda mine: mine.view(np.memmap)])
def test_what_shares_its_memory_in_another_guise_is_copied_too(share: Callable[[Any], Any]) -> None:
    mine = np.arange(3, dtype=np.int32)
    vector = int32_vector(share(mine), "token_ids")
    mine[0] = 9
    assert vector.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        vector.flags.writeable = True


def test_arrays_of_any_layout_and_byte_order_keep_their_values() -> None:
    wanted = np.arange(6, dtype=np.int32)
    scattered = np.repeat(wanted, 2)[::2]
    for values in (scattered, wanted[::-1].copy()[::-1], wanted.astype(">i4"), wanted.astype(np.uint64)):
        vector = int32_vector(values, "token_ids")
        assert vector.dtype == np.int32
        assert vector.dtype.isnative
        assert vector.tolist() == wanted.tolist()
        assert not vector.flags.writeable


def test_uniform_bools_are_read_only() -> None:
    for value in (True, False):
        vector = uniform_bools(value, 3)
        assert vector.dtype == np.bool_
        assert vector.tolist() == [value] * 3
        assert not vector.flags.writeable
        assert len(uniform_bools(value, 0)) == 0


def test_bool_and_float_vectors() -> None:
    assert bool_vector([1, 0], "mask").tolist() == [True, False]
    with pytest.raises(ValueError, match="mask holds 2"):
        bool_vector([0, 2], "mask")
    assert float32_vector([-1, -0.5], "logprobs").dtype == np.float32
    assert float32_vector([-1e300], "logprobs").tolist() == [-np.inf]
    with pytest.raises(ValueError, match="logprobs has dtype"):
        float32_vector(["x"], "logprobs")
    assert all(len(make([], "empty")) == 0 for make in (bool_vector, float32_vector, int32_vector))


@given(hnp.arrays(np.int64, (2, 1, 2), elements=st.integers(-1, 70_000)))
def test_routed_experts_are_narrowed_exactly_or_refused(ids: np.ndarray) -> None:
    if ids.min() < 0 or ids.max() > 65_535:
        with pytest.raises(ValueError, match="0 to 65535"):
            routed_experts_array(ids, 2)
    else:
        narrow = routed_experts_array(ids, 2)
        assert narrow.dtype == (np.uint8 if ids.max() < 256 else np.uint16)
        assert (narrow == ids).all()


@pytest.mark.parametrize("shape", [(3, 4, 2), (2, 4), (2,)])
def test_routed_experts_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected \(2, layers, top_k\)"):
        routed_experts_array(np.zeros(shape, np.uint8), 2)
    with pytest.raises(ValueError, match="float64"):
        routed_experts_array(np.zeros((2, 1, 1)), 2)


def test_large_arrays_are_not_copied() -> None:
    ids = np.arange(4, dtype=np.int32)
    experts = np.zeros((4, 2, 2), np.uint8)
    assert np.shares_memory(SamplingMask(ids, np.array([4], np.int32)).ids, ids)
    assert np.shares_memory(routed_experts_array(experts, 4), experts)


def test_csr_arrays_fit_their_counts() -> None:
    mask = SamplingMask(np.array([5, 6, 7]), np.array([2, 0, 1]))
    assert (mask.ids.dtype.name, mask.counts.dtype.name, mask.nbytes) == ("int32", "int32", 24)
    assert not mask.ids.flags.writeable
    head = TopLogprobs(np.array([5, 6]), np.array([-0.1, -2.0]), np.array([2]))
    assert (head.logprobs.dtype.name, head.nbytes) == ("float32", 20)
    with pytest.raises(ValueError, match=r"sampling_mask.ids has length 1, expected 2"):
        SamplingMask(np.array([5]), np.array([2]))
    with pytest.raises(ValueError, match=r"counts holds -1"):
        SamplingMask(np.array([5]), np.array([2, -1]))
    with pytest.raises(ValueError, match=r"top_logprobs.logprobs has length 1, expected 2"):
        TopLogprobs(np.array([5, 6]), np.array([-0.1]), np.array([2]))


def test_bools_are_one_byte_of_0_or_1_whatever_memory_they_were_read_from() -> None:
    odd = np.frombuffer(b"\0\1\2\xff", np.bool_)
    vector = bool_vector(odd, "mask")
    assert vector.tobytes() == b"\0\1\1\1"
    assert bool_vector(odd[::2], "mask").tobytes() == b"\0\1"
