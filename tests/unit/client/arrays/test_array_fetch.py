"""One fetch over the wire, against a scripted worker."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from envtrio.v1.training_array_service_pb2 import ArrayLayout
from numpy.testing import assert_array_equal

from env_client import (
    ArraysIncompleteError,
    FetchCancelledError,
    InvalidRequestError,
    ResourceExhaustedError,
    SyncArrayClient,
    TokenRangeError,
)
from tests.helpers.scripted_arrays import INSTANCE, KEY, Branch, ScriptedArrays, some_arrays
from tests.helpers.scripted_end import End
from tests.helpers.scripted_service import Hang, Reach, Wait

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

SECONDS = 20.0
LOST = End(grpc.StatusCode.NOT_FOUND, "ARRAYS_LOST")
CUT_OFF = End(grpc.StatusCode.UNAVAILABLE)


def same(found: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]]) -> None:
    """Bytes, dtypes, shapes, order; writable and in C order."""
    assert list(found) == list(expected)
    for name, array in found.items():
        assert_array_equal(array, expected[name], strict=True)
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.flags.aligned


@pytest.mark.parametrize("size", [1, 7, 96, 10_000])
def test_pieces_of_any_size_make_the_arrays(
    service: ScriptedArrays, client: SyncArrayClient, size: int
) -> None:
    branch = service.branch()
    service.on_fetch(*branch.answer(size))
    same(client.fetch(branch.reference()), branch.arrays)
    [request] = service.fetches
    assert (request.protocol_generation, request.instance, request.key) == (1, INSTANCE, KEY)
    assert (list(request.fields), request.token_start, request.token_end) == ([], 0, 6)
    assert list(request.transports) == ["memfd"]


def test_fields_and_a_range_are_asked_for(service: ScriptedArrays, client: SyncArrayClient) -> None:
    branch = service.branch()
    rows = {"routed_experts": branch.arrays["routed_experts"][4:5]}
    cut = Branch(rows)
    service.on_fetch(cut.first(token_start=4, token_end=5), *cut.pieces())
    same(client.fetch(branch.reference(), ["routed_experts"], slice(-2, -1)), rows)
    [request] = service.fetches
    assert (list(request.fields), request.token_start, request.token_end) == (["routed_experts"], 4, 5)


def test_a_branch_without_tokens(service: ScriptedArrays, client: SyncArrayClient) -> None:
    branch = Branch(some_arrays(0, 0), service.address, tokens=0)
    service.on_fetch(branch.first())
    told: list[tuple[int, int]] = []
    same(client.fetch(branch.reference(), on_progress=lambda *now: told.append(now)), branch.arrays)
    assert told == [(0, 0)]


def test_out_is_filled_in_place(service: ScriptedArrays, client: SyncArrayClient) -> None:
    branch = service.branch()
    service.on_fetch(*branch.answer())
    big = np.zeros((9, 2, 4), np.uint16)
    out = {"routed_experts": big[2:8], "top_logprobs.counts": np.empty(3, np.int32)}
    found = client.fetch(branch.reference(), out=out)
    same(found, branch.arrays)
    assert all(found[name] is array for name, array in out.items())
    assert_array_equal(big[2:8], branch.arrays["routed_experts"])
    assert not big[:2].any()
    assert not big[8:].any()


def read_only() -> NDArray[Any]:
    array = np.empty((6, 2, 4), np.uint16)
    array.flags.writeable = False
    return array


def shared() -> dict[str, NDArray[Any]]:
    """Two arrays of one memory."""
    memory = np.empty(48, np.uint8)
    return {
        "top_logprobs.ids": memory[:24].view(np.int32),
        "top_logprobs.logprobs": memory[20:44].view(np.float32),
    }


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ({"routed": np.empty(1)}, "'routed'.*expected one of routed_experts"),
        ({"routed_experts": np.empty((6, 2, 4), np.uint8)}, "dtype uint8.*uint16"),
        ({"routed_experts": np.empty((6, 2, 4), ">u2")}, "dtype >u2"),
        ({"routed_experts": np.empty((6, 8), np.uint16)}, r"shape \[6, 8\].*\[6, 2, 4\]"),
        ({"routed_experts": np.empty((6, 2, 8), np.uint16)[:, :, ::2]}, "strides"),
        ({"routed_experts": np.empty((6, 2, 4), np.uint16, order="F")}, "strides"),
        ({"routed_experts": read_only()}, "read-only"),
        ({"routed_experts": bytearray(96)}, "bytearray.*numpy array"),
        ([np.empty(1)], "list.*arrays by name"),
        (shared(), r"out\['top_logprobs.ids'\].*out\['top_logprobs.logprobs'\]"),
    ],
)
def test_out_that_does_not_fit_is_refused_before_the_call(
    service: ScriptedArrays, client: SyncArrayClient, out: Any, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        client.fetch(service.branch().reference(), out=out)
    assert service.fetches == []


def test_out_that_masks_what_is_written_is_filled(service: ScriptedArrays, client: SyncArrayClient) -> None:
    branch = service.branch()
    service.on_fetch(*branch.answer())
    masked = np.ma.MaskedArray(np.zeros(3, np.int32), mask=True, hard_mask=True)
    client.fetch(branch.reference(), out={"top_logprobs.counts": masked})
    assert_array_equal(masked.data, branch.arrays["top_logprobs.counts"])


def test_arrays_that_no_memory_has_room_for_are_an_error_that_says_so(
    service: ScriptedArrays, client: SyncArrayClient
) -> None:
    tokens = 2**32
    branch = Branch({}, service.address, tokens)
    said: dict[str, Any] = {"dtype": "u1", "shape": [tokens, 512, 512], "bytes": tokens * 2**18}
    layout = ArrayLayout(name="routed_experts", dtype="u1", shape=said["shape"], size_bytes=tokens * 2**18)
    service.on_fetch(branch.first(arrays=[layout], body_bytes=tokens * 2**18))
    with pytest.raises(ResourceExhaustedError, match=f"no memory for its {tokens * 2**18} bytes"):
        client.fetch(branch.reference(arrays={"routed_experts": said}))


def test_out_for_a_range_is_checked_by_the_descriptor(
    service: ScriptedArrays, client: SyncArrayClient
) -> None:
    branch = service.branch()
    cut = Branch({"routed_experts": branch.arrays["routed_experts"][4:5]})
    service.on_fetch(cut.first(token_start=4, token_end=5), *cut.pieces())
    out = {"routed_experts": np.empty((2, 2, 4), np.uint16)}
    with pytest.raises(InvalidRequestError, match=r"shape \[2, 2, 4\], expected \[1, 2, 4\]"):
        client.fetch(branch.reference(), ["routed_experts"], slice(4, 5), out=out)


def test_a_hole_in_the_reference_is_refused_without_a_call(
    service: ScriptedArrays, client: SyncArrayClient
) -> None:
    reference = service.branch(incomplete={"sampling_mask": "absent"}).reference()
    with pytest.raises(ArraysIncompleteError):
        client.fetch(reference, ["sampling_mask"])
    with pytest.raises(TokenRangeError):
        client.fetch(reference, tokens=slice(0, 7))
    assert service.fetches == []


def test_progress_is_told_at_most_every_50_ms_and_at_the_end(
    service: ScriptedArrays, client: SyncArrayClient
) -> None:
    branch = service.branch()
    told: list[tuple[int, int]] = []
    service.on_fetch(*branch.answer(1))
    began = time.monotonic()
    client.fetch(branch.reference(), on_progress=lambda *now: told.append(now))
    size = branch.descriptor().body_bytes
    assert told[-1] == (size, size)
    assert len(told) <= (time.monotonic() - began) / 0.05 + 2, "the first and the last bytes beside"


def test_what_progress_raises_ends_the_call(service: ScriptedArrays, client: SyncArrayClient) -> None:
    branch = service.branch()
    service.on_fetch(*branch.answer())

    def raises(_done: int, _total: int) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        client.fetch(branch.reference(), on_progress=raises)
    service.until(lambda: service.open_fetches == 0)


def test_closing_the_client_ends_what_another_thread_fetches(service: ScriptedArrays) -> None:
    client = SyncArrayClient()
    branch = service.branch()
    reached = threading.Event()
    service.on_fetch(branch.first(), Reach(reached), Hang())
    errors: list[BaseException] = []

    def fetch() -> None:
        try:
            client.fetch(branch.reference())
        except FetchCancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    assert reached.wait(SECONDS)
    client.close()
    thread.join(SECONDS)
    assert len(errors) == 1
    service.until(lambda: service.open_fetches == 0)
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.fetch(branch.reference())


def test_a_worker_is_waited_for_by_nobody_else(service: ScriptedArrays, client: SyncArrayClient) -> None:
    """Two fetches of one address share the channel, and one that hangs holds up nobody."""
    branch = service.branch()
    hanging, go = threading.Event(), threading.Event()
    service.on_fetch(Reach(hanging), Wait(go), *branch.answer())
    service.on_fetch(*branch.answer())
    thread = threading.Thread(target=client.fetch, args=(branch.reference(),))
    thread.start()
    assert hanging.wait(SECONDS)
    same(client.fetch(branch.reference()), branch.arrays)
    assert len(client._core._links) == 1
    go.set()
    thread.join(SECONDS)
