"""The same host: arrays out of the worker's memory, or as a stream where that cannot be."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from env_client import (
    ArraysCorruptError,
    InvalidRequestError,
    SyncArrayClient,
)
from env_client.training_arrays import map as array_map
from env_client.training_arrays import pages as array_pages
from env_client.training_arrays import prefault as array_prefault
from tests.helpers.array_segment import LARGE, Segment, equal, is_mapped, open_descriptors
from tests.helpers.scripted_arrays import Branch
from tests.helpers.scripted_service import Wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.helpers.scripted_arrays import ScriptedArrays

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the host has no /proc/PID/fd")


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
    monkeypatch.setattr(array_map, "MIN_BYTES", 1)
    monkeypatch.setattr(array_prefault, "_CHUNK_BYTES", 8192)
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


def test_memory_that_cannot_be_mapped_is_copied(
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

    monkeypatch.setattr(array_pages, "libc", Full)
    service.on_fetch(branch.first(transports=segment.offer()))
    found = client.fetch(branch.reference())
    equal(found, branch)
    assert not any(is_mapped(array) for array in found.values())


def test_of_very_many_arrays_the_last_are_copied(
    service: ScriptedArrays,
    client: SyncArrayClient,
    branch: Branch,
    segment: Segment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(array_pages, "_MAX_MAPPINGS", len(array_pages._mapped) + 2)
    held = []
    for _ in range(4):
        service.on_fetch(branch.first(transports=segment.offer()))
        held.append(client.fetch(branch.reference())["routed_experts"])
    assert [is_mapped(array) for array in held] == [True, True, False, False]
    held.clear()
    gc.collect()
    service.on_fetch(branch.first(transports=segment.offer()))
    assert is_mapped(client.fetch(branch.reference())["routed_experts"])


@pytest.fixture(params=["a file on a disk", "a memfd that its worker can cut"])
def loose(request: pytest.FixtureRequest, branch: Branch, segment: Segment) -> Iterator[Segment]:
    """As the segment, but somebody may still change it, and make it shorter."""
    with tempfile.TemporaryFile() as disk:
        fd = disk.fileno() if "disk" in request.param else os.memfd_create("test", os.MFD_CLOEXEC)
        os.pwrite(fd, os.pread(segment.fd, segment.size, 0), 0)
        yield Segment(fd, segment.size, segment.parts)
        if fd != disk.fileno():
            os.close(fd)


def test_a_file_that_may_become_shorter_is_copied(
    service: ScriptedArrays, client: SyncArrayClient, branch: Branch, loose: Segment
) -> None:
    service.on_fetch(branch.first(transports=loose.offer()))
    found = client.fetch(branch.reference())
    assert not any(is_mapped(array) for array in found.values())
    os.ftruncate(loose.fd, 4096)  # Who had it mapped would be killed by reading.
    equal(found, branch)


def test_of_a_file_that_may_change_the_checksum_is_checked(
    service: ScriptedArrays, client: SyncArrayClient, branch: Branch, loose: Segment
) -> None:
    os.pwrite(loose.fd, b"other", 4096)
    service.on_fetch(branch.first(transports=loose.offer()))
    with pytest.raises(ArraysCorruptError, match="CRC-32C"):
        client.fetch(branch.reference())


def test_a_file_is_opened_before_its_fetch_ends(
    service: ScriptedArrays, client: SyncArrayClient, branch: Branch, segment: Segment
) -> None:
    """The worker lets go of what was released when the fetch ends, and not before."""
    offer = segment.offer(fd=str(os.dup(segment.fd)))
    last = int(offer[0].parameters["fd"])
    opened = threading.Event()

    def until_opened() -> None:
        while len(open_descriptors()) < 3:
            assert time.monotonic() < late, "it was not opened while the fetch was open"
            time.sleep(0.001)
        os.close(last)
        opened.set()

    late = time.monotonic() + 10
    watching = threading.Thread(target=until_opened)
    watching.start()
    service.on_fetch(branch.first(transports=offer), Wait(opened))
    equal(client.fetch(branch.reference()), branch)
    watching.join()
