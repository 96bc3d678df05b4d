"""The same host: arrays out of the worker's memory, or as a stream where that cannot be."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from envtrio.v1.training_array_service_pb2 import TransportOffer
from numpy.testing import assert_array_equal

from env_client import (
    ArrayProtocolError,
    ArraysNotFoundError,
    InvalidRequestError,
    SyncArrayClient,
)
from env_client.training_arrays import map as array_map
from tests.helpers.array_segment import SEGMENT, Segment, is_mapped, open_descriptors
from tests.helpers.scripted_arrays import INSTANCE, Branch, piece
from tests.helpers.scripted_end import End

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tests.helpers.scripted_arrays import ScriptedArrays
    from tests.helpers.scripted_service import Send

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the host has no /proc/PID/fd")

LARGE = 300_000  # Bytes that are mapped, and not copied.


@pytest.fixture
def segment() -> Iterator[Segment]:
    """A memfd with a header."""
    made = Segment(os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    os.pwrite(made.fd, b"envtrio-arrays-1" + INSTANCE.encode() + SEGMENT.encode(), 0)
    try:
        yield made
    finally:
        os.close(made.fd)


@pytest.fixture
def branch(service: ScriptedArrays, segment: Segment) -> Branch:
    """A branch whose arrays are in the segment: one mapped, one in two parts, an empty one a small one."""
    tokens = LARGE // 8
    arrays: dict[str, NDArray[Any]] = {
        "routed_experts": np.random.default_rng(1).integers(0, 255, (tokens, 2, 4), np.uint8),
        "top_logprobs.ids": np.arange(LARGE // 4, dtype=np.int32),
        "sampling_mask.ids": np.empty(0, np.int32),
        "sampling_mask.counts": np.arange(5, dtype=np.int32),
    }
    segment.put(arrays["routed_experts"].tobytes())
    ids = arrays["top_logprobs.ids"].tobytes()
    segment.put(ids[:1000], ids[1000:], gap=8)
    segment.parts.append([])
    segment.put(arrays["sampling_mask.counts"].tobytes())
    segment.seal()
    return Branch(arrays, service.address, tokens)


def equal(found: dict[str, NDArray[Any]], branch: Branch) -> None:
    assert list(found) == list(branch.arrays)
    for name, array in found.items():
        assert_array_equal(array, branch.arrays[name], strict=True)
        assert array.flags.c_contiguous
        assert array.flags.writeable


def test_arrays_come_out_of_the_file(
    service: ScriptedArrays, client: SyncArrayClient, branch: Branch, segment: Segment
) -> None:
    told: list[tuple[int, int]] = []
    service.on_fetch(branch.first(transports=segment.offer()))
    found = client.fetch(branch.reference(), on_progress=lambda *now: told.append(now))
    equal(found, branch)
    size = branch.descriptor().body_bytes
    assert told == [(size, size)]
    assert [is_mapped(array) for array in found.values()] == [True, False, False, False]


def test_what_is_written_to_a_mapped_array_nobody_else_sees(
    service: ScriptedArrays, client: SyncArrayClient, branch: Branch, segment: Segment
) -> None:
    for _ in range(2):
        service.on_fetch(branch.first(transports=segment.offer()))
    written = client.fetch(branch.reference())["routed_experts"]
    written[:] = 7
    equal(client.fetch(branch.reference()), branch)
    assert (written == 7).all()


def test_a_mapped_array_outlives_client_and_worker_and_ends_by_itself(
    service: ScriptedArrays, branch: Branch, segment: Segment
) -> None:
    service.on_fetch(branch.first(transports=segment.offer()))
    with SyncArrayClient() as client:
        found = client.fetch(branch.reference())
    array = found.pop("routed_experts")
    assert open_descriptors() == [segment.fd]  # A mapping needs none.
    view = array[5:, 1]
    del array, found
    gc.collect()
    assert is_mapped(view)
    assert_array_equal(view, branch.arrays["routed_experts"][5:, 1])
    del view
    gc.collect()
    with open("/proc/self/maps") as maps:
        assert "memfd:test" not in maps.read()


def test_out_is_copied_into(
    service: ScriptedArrays, client: SyncArrayClient, branch: Branch, segment: Segment
) -> None:
    out = {name: np.ones_like(array) for name, array in branch.arrays.items()}
    service.on_fetch(branch.first(transports=segment.offer()))
    found = client.fetch(branch.reference(), out=out)
    equal(found, branch)
    assert all(found[name] is array for name, array in out.items())


def test_out_that_does_not_fit_is_no_reason_to_stream(
    service: ScriptedArrays, client: SyncArrayClient, branch: Branch, segment: Segment
) -> None:
    rows = branch.arrays["routed_experts"][:2]
    cut = Branch({"routed_experts": rows})
    segment.parts[:] = [[(segment.parts[0][0][0], rows.nbytes)]]
    service.on_fetch(cut.first(token_end=2, transports=segment.offer()))
    with pytest.raises(InvalidRequestError, match="shape"):
        client.fetch(
            branch.reference(),
            ["routed_experts"],
            slice(2),
            out={"routed_experts": np.empty((3, 2, 4), np.uint8)},
        )


def test_a_large_mapping_is_entered_by_threads(
    service: ScriptedArrays, client: SyncArrayClient, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_map, "_PREFAULT_BYTES", 1)
    monkeypatch.setattr(array_map, "_CHUNK_BYTES", 8192)
    array = np.random.default_rng(2).integers(0, 255, (LARGE, 1, 1), np.uint8)
    large = Branch({"routed_experts": array}, service.address, LARGE)
    segment.put(b"x" * 7)  # So that the array does not begin with a page.
    segment.parts.clear()
    segment.put(array.tobytes())
    segment.seal()
    service.on_fetch(large.first(transports=segment.offer()))
    found = client.fetch(large.reference())
    equal(found, large)
    assert is_mapped(found["routed_experts"])


REFUSED = {
    "another instance": lambda s: s.offer(segment="6" * 32),
    "another size": lambda s: s.offer(size=str(s.size + 4096)),
    "no file": lambda s: s.offer(fd=os.devnull),
    "no number": lambda s: s.offer(pid="-1"),
    "a path": lambda s: s.offer(fd="../../../etc/passwd"),
    "nothing": lambda s: [TransportOffer(transport="memfd")],
    "few parts": lambda s: s.offer(extents="4096+1"),
    "parts of another size": lambda s: s.offer(extents=";".join(["4096+1", "", "", ""])),
    "a part in the header": lambda s: _moved(s, 4095),
    "a part after the end": lambda s: _moved(s, s.size),
    "no part": lambda s: s.offer(extents="a;b;c;d"),
}


def _moved(segment: Segment, offset: int) -> list[TransportOffer]:
    segment.parts[0] = [(offset, segment.parts[0][0][1])]
    return segment.offer()


@pytest.mark.parametrize("offer", REFUSED.values(), ids=REFUSED)
def test_an_offer_that_cannot_be_taken_is_streamed(
    service: ScriptedArrays,
    client: SyncArrayClient,
    branch: Branch,
    segment: Segment,
    offer: Callable[[Segment], list[TransportOffer]],
) -> None:
    for _ in range(2):
        service.on_fetch(branch.first(transports=offer(segment)))
        service.on_fetch(*branch.answer(100_000))
    for _ in range(2):  # It is asked for again: the next file may be there.
        equal(client.fetch(branch.reference()), branch)
    assert [list(request.transports) for request in service.fetches] == [["memfd"], []] * 2


@pytest.mark.parametrize("kind", ["directory", "pipe", "device"])
def test_what_is_no_regular_file_is_not_opened(
    service: ScriptedArrays, client: SyncArrayClient, branch: Branch, segment: Segment, kind: str
) -> None:
    if kind == "pipe":
        found, other = os.pipe()
    else:
        found, other = os.open("/dev/full" if kind == "device" else "/", os.O_RDONLY), -1
    try:
        service.on_fetch(branch.first(transports=segment.offer(fd=str(found))))
        service.on_fetch(*branch.answer(100_000))
        equal(client.fetch(branch.reference()), branch)
    finally:
        os.close(found)
        if other >= 0:
            os.close(other)


def test_a_file_that_cannot_be_opened_is_not_asked_for_again(
    service: ScriptedArrays, client: SyncArrayClient, branch: Branch, segment: Segment
) -> None:
    service.on_fetch(branch.first(transports=segment.offer(fd="99999999")))
    for _ in range(2):
        service.on_fetch(*branch.answer(100_000))
    for _ in range(2):
        equal(client.fetch(branch.reference()), branch)
    assert [list(request.transports) for request in service.fetches] == [["memfd"], [], []]


def test_a_file_that_was_released_meanwhile_says_nothing_of_the_host(
    service: ScriptedArrays, client: SyncArrayClient, branch: Branch, segment: Segment
) -> None:
    service.on_fetch(branch.first(transports=segment.offer(fd="99999999")))
    service.on_fetch(End(grpc.StatusCode.NOT_FOUND, "ARRAYS_NOT_FOUND"))
    service.on_fetch(branch.first(transports=segment.offer()))
    with pytest.raises(ArraysNotFoundError):
        client.fetch(branch.reference())
    equal(client.fetch(branch.reference()), branch)
    assert [list(request.transports) for request in service.fetches] == [["memfd"], [], ["memfd"]]


def test_without_shared_memory_nothing_is_asked_for(
    service: ScriptedArrays, branch: Branch, segment: Segment
) -> None:
    # What was not asked for is an offer for others: the pieces follow.
    service.on_fetch(branch.first(transports=segment.offer()), *branch.answer(100_000)[1:])
    with SyncArrayClient(shared_memory=False) as client:
        equal(client.fetch(branch.reference()), branch)
    assert list(service.fetches[0].transports) == []


@pytest.mark.parametrize("more", [[piece(b"x")], [piece(b"")]])
def test_pieces_after_the_offer_are_an_error(
    service: ScriptedArrays, client: SyncArrayClient, branch: Branch, segment: Segment, more: list[Send]
) -> None:
    service.on_fetch(branch.first(transports=segment.offer()), *more)
    with pytest.raises(ArrayProtocolError, match="after an offer"):
        client.fetch(branch.reference())


def test_memory_that_cannot_be_mapped_is_streamed(
    service: ScriptedArrays,
    client: SyncArrayClient,
    branch: Branch,
    segment: Segment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Full:
        """A libc whose address space is full."""

        def mmap(self, *_: Any) -> Any:
            ctypes.set_errno(12)
            return ctypes.c_void_p(-1).value

    monkeypatch.setattr(array_map, "_libc", Full)
    service.on_fetch(branch.first(transports=segment.offer()))
    service.on_fetch(*branch.answer(100_000))
    equal(client.fetch(branch.reference()), branch)


def test_a_file_that_is_shorter_than_it_was_is_streamed(
    service: ScriptedArrays,
    client: SyncArrayClient,
    branch: Branch,
    monkeypatch: pytest.MonkeyPatch,
    segment: Segment,
) -> None:
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    service.on_fetch(branch.first(transports=segment.offer()))
    service.on_fetch(*branch.answer(100_000))
    equal(client.fetch(branch.reference()), branch)
