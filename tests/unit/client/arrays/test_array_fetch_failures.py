"""What a fetch does when the worker refuses, breaks the grammar, is cut off, full, or gone."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from numpy.testing import assert_array_equal

from env_client import (
    ArrayProtocolError,
    ArraysCorruptError,
    ArraysIncompleteError,
    ArraysLostError,
    ArraysNotFoundError,
    EnvError,
    FetchDeadlineError,
    InvalidRequestError,
    QueueFullError,
    SyncArrayClient,
    TokenRangeError,
)
from tests.helpers.scripted_arrays import KEY, Branch, ScriptedArrays, piece, some_arrays
from tests.helpers.scripted_end import End
from tests.helpers.scripted_service import Hang, Reach

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


BRANCH = Branch(some_arrays())


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([], "nothing came first"),
        (BRANCH.pieces(), "a piece came first"),
        ([BRANCH.first(), *BRANCH.pieces()[:-1]], "150 bytes came, expected 156 "),
        ([*BRANCH.answer(), piece(b"x")], "bytes came, expected"),
        ([BRANCH.first(), BRANCH.first()], "second descriptor"),
        ([BRANCH.first(), piece(b"")], "without bytes"),
        ([BRANCH.first(body_bytes=2**60)], "body_bytes"),
    ],
)
def test_what_breaks_the_grammar(
    service: ScriptedArrays, client: SyncArrayClient, frames: list[Any], message: str
) -> None:
    service.on_fetch(*frames)
    with pytest.raises(ArrayProtocolError, match=f"^arrays 22222222 of worker 11111111 at .*{message}"):
        client.fetch(service.branch().reference())


def test_a_checksum_that_differs_names_both(service: ScriptedArrays, client: SyncArrayClient) -> None:
    branch = service.branch()
    crc = branch.descriptor().body_crc32c
    service.on_fetch(branch.first(body_crc32c=crc ^ 1), *branch.pieces())
    with pytest.raises(ArraysCorruptError, match=rf"{crc:#010x}.*{crc ^ 1:#010x}"):
        client.fetch(branch.reference())


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        ("NOT_FOUND", "ARRAYS_NOT_FOUND", ArraysNotFoundError),
        ("NOT_FOUND", "ARRAYS_LOST", ArraysLostError),
        ("FAILED_PRECONDITION", "ARRAYS_INCOMPLETE", ArraysIncompleteError),
        ("OUT_OF_RANGE", "TOKEN_RANGE", TokenRangeError),
        ("INVALID_ARGUMENT", "INVALID_REQUEST", InvalidRequestError),
        ("DEADLINE_EXCEEDED", "DEADLINE", FetchDeadlineError),
        ("UNIMPLEMENTED", "NOT_OFFERED", ArraysLostError),
        ("UNIMPLEMENTED", "", ArraysLostError),
        ("UNAUTHENTICATED", "UNAUTHENTICATED", EnvError),
    ],
)
def test_refusals_are_not_tried_again(
    service: ScriptedArrays, client: SyncArrayClient, code: str, reason: str, kind: type[EnvError]
) -> None:
    service.on_fetch(End(grpc.StatusCode[code], reason, "why so", {"field": "f", "hole": "h"}))
    with pytest.raises(kind, match=r"arrays 22222222 of worker 11111111.*why so") as caught:
        client.fetch(service.branch().reference())
    assert type(caught.value) is kind
    assert KEY not in str(caught.value)
    assert not reason or caught.value.metadata == {"field": "f", "hole": "h"}


@pytest.mark.parametrize("failure", [CUT_OFF, End(grpc.StatusCode.CANCELLED)])
def test_a_fetch_that_was_cut_off_begins_again(
    service: ScriptedArrays, client: SyncArrayClient, failure: End
) -> None:
    branch = service.branch()
    told: list[tuple[int, int]] = []
    service.on_fetch(failure)
    service.on_fetch(*branch.answer()[:3], failure)
    service.on_fetch(*branch.answer())
    same(client.fetch(branch.reference(), on_progress=lambda *now: told.append(now)), branch.arrays)
    size = branch.descriptor().body_bytes
    assert told[-1] == (size, size)
    assert told == sorted(set(told))


def test_a_fetch_that_comes_no_further_is_lost(service: ScriptedArrays) -> None:
    branch = service.branch()
    service.on_each_fetch(*branch.answer()[:3], CUT_OFF)  # how many come is the machine's affair
    with SyncArrayClient(lost_seconds=0.1) as client, pytest.raises(ArraysLostError, match=r"0\.1 s"):
        client.fetch(branch.reference())
    assert service.fetches


def test_a_worker_that_is_gone_is_lost_within_the_bound() -> None:
    with ScriptedArrays() as service:
        branch = service.branch()
    began = time.monotonic()
    with (
        SyncArrayClient(lost_seconds=0.3) as client,
        pytest.raises(ArraysLostError, match=r"Connection refused.*0\.3 s") as caught,
    ):
        client.fetch(branch.reference())
    assert 0.3 <= time.monotonic() - began < 5
    assert caught.value.code == "NOT_FOUND"


def test_a_worker_that_comes_back_is_found(service: ScriptedArrays) -> None:
    with ScriptedArrays() as first:
        branch = first.branch()
        reached, go = threading.Event(), threading.Event()
        first.on_fetch(branch.first(), Reach(reached), Hang())
        with SyncArrayClient(lost_seconds=SECONDS) as client:
            found: list[dict[str, Any]] = []
            thread = threading.Thread(target=lambda: found.append(client.fetch(branch.reference())))
            thread.start()
            assert reached.wait(SECONDS)
            first.stop()
            port = int(branch.address.rpartition(":")[2])
            with ScriptedArrays(port) as second:
                second.on_fetch(*branch.answer())
                thread.join(SECONDS)
            go.set()
    [arrays] = found
    same(arrays, branch.arrays)


def full(seconds: int = 1) -> End:
    return End(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_seconds=seconds)


def test_a_full_worker_is_asked_again_when_it_says(service: ScriptedArrays, client: SyncArrayClient) -> None:
    branch = service.branch()
    service.on_fetch(full())
    service.on_fetch(*branch.answer())
    began = time.monotonic()
    same(client.fetch(branch.reference()), branch.arrays)
    assert time.monotonic() - began >= 1


def test_a_full_worker_is_not_asked_for_ever(service: ScriptedArrays) -> None:
    service.on_fetch(full())
    with SyncArrayClient(lost_seconds=0) as client, pytest.raises(QueueFullError):
        client.fetch(service.branch().reference())
    service.on_fetch(full(9))
    with SyncArrayClient(lost_seconds=0) as client, pytest.raises(FetchDeadlineError, match=r"0\.5 s"):
        client.fetch(service.branch().reference(), timeout=0.5)


@pytest.mark.parametrize("steps", [[Hang()], [BRANCH.first(), Hang()], [*BRANCH.answer(), Hang()]])
def test_the_timeout_is_of_the_whole(
    service: ScriptedArrays, client: SyncArrayClient, steps: list[Any]
) -> None:
    service.on_fetch(*BRANCH.answer())
    client.fetch(service.branch().reference())  # connected: the time below is that of the call alone
    service.on_fetch(*steps)
    with pytest.raises(FetchDeadlineError) as caught:
        client.fetch(service.branch().reference(), timeout=0.5)
    assert caught.value.code == "DEADLINE_EXCEEDED"
    for wrong in (-1, float("nan")):
        with pytest.raises(InvalidRequestError, match="timeout"):
            client.fetch(service.branch().reference(), timeout=wrong)
