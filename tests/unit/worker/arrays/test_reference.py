"""A reference says what a branch has, and stays under 1 KiB whatever it is made of."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from env_worker.arrays.branch import StoredArray
from env_worker.arrays.layout import TraceLayout
from env_worker.arrays.reference import MAX_ADDRESS_BYTES, MAX_REFERENCE_BYTES, check_address, make_reference
from env_worker.domain import TRAINING_ARRAY_FIELDS, JsonObject, Message, SamplingMask, Trace

if TYPE_CHECKING:
    from env_worker.arrays.branch import BranchLayout

INSTANCE, KEY = "a" * 32, "b" * 32
LONGEST_HOST = "x" * 253 + ":65535"


def branch() -> BranchLayout:
    """Three tokens, two of them sampled, with routing and without top_logprobs."""
    trace = Trace("trace-0")
    root = trace.add_node(Message("user"), [1], routed_experts=np.ones((1, 3, 2), np.uint8))
    trace.add_node(
        Message("assistant"),
        [2, 3],
        parent=root,
        sampled=True,
        routed_experts=np.ones((2, 3, 2), np.uint8),
        sampling_mask=SamplingMask(np.array([5, 6, 7]), np.array([1, 2])),
    )
    return TraceLayout.of(trace, TRAINING_ARRAY_FIELDS).branches[0]


def with_arrays(arrays: tuple[StoredArray, ...], incomplete: dict[str, str]) -> BranchLayout:
    """A branch that says so of itself."""
    found = SimpleNamespace(leaf=2**31, tokens=2**40, sampled=2**40, arrays=arrays, incomplete=incomplete)
    return cast("BranchLayout", found)


def size(reference: JsonObject) -> int:
    """Bytes of JSON, written as wastefully as JSON writers do."""
    return max(len(json.dumps(reference)), len(json.dumps(reference, ensure_ascii=False).encode()))


def test_what_a_reference_says() -> None:
    assert make_reference(branch(), instance=INSTANCE, address="h:1", key=KEY, trace_id="trace-0") == {
        "instance": INSTANCE,
        "address": "h:1",
        "key": KEY,
        "trace_id": "trace-0",
        "branch": 1,
        "tokens": 3,
        "sampled": 2,
        "arrays": {
            "routed_experts": {"dtype": "u1", "shape": [3, 3, 2], "bytes": 18},
            "sampling_mask.ids": {"dtype": "<i4", "shape": [3], "bytes": 12},
            "sampling_mask.counts": {"dtype": "<i4", "shape": [2], "bytes": 8},
        },
        "incomplete": {"top_logprobs": "absent: no node of the trace has top_logprobs"},
    }


def test_what_is_empty_is_left_out() -> None:
    reference = make_reference(with_arrays((), {}), instance=INSTANCE, address="h:1", key=KEY)
    assert reference["arrays"] == {}
    assert not {"incomplete", "trace_id"} & reference.keys()


def test_the_largest_reference_has_room_for_the_longest_host() -> None:
    vector = (2**33,)
    arrays = (
        StoredArray("routed_experts", "<u2", (2**33, 1000, 1000), 2**54),
        StoredArray("sampling_mask.ids", "<i4", vector, 2**35),
        StoredArray("sampling_mask.counts", "<i4", vector, 2**35),
        StoredArray("top_logprobs.ids", "<i4", vector, 2**35),
        StoredArray("top_logprobs.logprobs", "<f4", vector, 2**35),
        StoredArray("top_logprobs.counts", "<i4", vector, 2**35),
    )
    for trace_id in ("trace-0", "x" * 128, "\0" * 128):
        reference = make_reference(
            with_arrays(arrays, {}), instance=INSTANCE, address=LONGEST_HOST, key=KEY, trace_id=trace_id
        )
        assert size(reference) <= MAX_REFERENCE_BYTES < 1024
        assert reference.get("trace_id", trace_id) == trace_id
    assert "trace_id" not in reference


@pytest.mark.parametrize("reason", ["z" * 5000, "\0" * 5000, '"\\' * 900, "é" * 400])
def test_long_reasons_are_cut(reason: str) -> None:
    holes = dict.fromkeys(TRAINING_ARRAY_FIELDS, reason)
    reference = make_reference(
        with_arrays((), holes), instance=INSTANCE, address=LONGEST_HOST, key=KEY, trace_id="x" * 128
    )
    assert size(reference) <= MAX_REFERENCE_BYTES
    assert list(reference["incomplete"]) == list(holes)
    for cut in reference["incomplete"].values():
        assert cut.endswith("...")
        assert reason.startswith(cut[:-3])
        assert len(cut) > 16


def test_an_absurd_address_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"1800 characters has \d+ bytes over the limit of 1023.*--advertise"
    ):
        make_reference(branch(), instance=INSTANCE, address="x" * 1800, key=KEY)


def test_an_address_is_checked_before_anything_is_kept() -> None:
    check_address(LONGEST_HOST)
    assert len(LONGEST_HOST) == MAX_ADDRESS_BYTES
    for address, size in (("x" * 260, 260), ("é" * 50, 300), ("x" * 1800, 1800)):
        with pytest.raises(ValueError, match=rf"takes {size} bytes.*1023.* for 259; .*--advertise"):
            check_address(address)


@pytest.mark.parametrize("extra", range(8))
def test_the_last_bytes_of_room_are_used_with_care(extra: int) -> None:
    holes = {"routed_experts": "a reason that is not short", "top_logprobs": "nor is this one"}
    bare = make_reference(with_arrays((), dict.fromkeys(holes, "")), instance=INSTANCE, address="", key=KEY)
    address = "x" * (MAX_REFERENCE_BYTES - size(bare) - extra)
    reference = make_reference(
        with_arrays((), holes), instance=INSTANCE, address=address, key=KEY, trace_id="t"
    )
    assert size(reference) <= MAX_REFERENCE_BYTES
