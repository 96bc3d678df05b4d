"""Offers of a worker's memory that are not taken: the same call streams."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import grpc
import numpy as np
import pytest
from envtrio.v1.training_array_service_pb2 import TransportOffer

from env_client import (
    ArrayProtocolError,
    ArraysNotFoundError,
    SyncArrayClient,
)
from env_client.training_arrays.map import Offer, OfferRefused
from env_client.training_arrays.reference import ArraySpec
from tests.helpers.array_segment import SEGMENT, Segment, equal
from tests.helpers.scripted_arrays import Branch, piece
from tests.helpers.scripted_end import End

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.scripted_arrays import ScriptedArrays
    from tests.helpers.scripted_service import Send

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the host has no /proc/PID/fd")


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


ONE = (ArraySpec("routed_experts", np.dtype("u1"), (6, 2, 4)),)


@pytest.mark.parametrize(
    "extents",
    [
        ",".join(["4096+0"] * 2**17) + ",4096+48",
        "4096+48" + ";" * 2**20,
        "4096+" + "0" * 2**23 + "48",
        "4096+48,",
        "9" * 18 + "+48",
    ],
    ids=["many parts", "many arrays", "long", "an empty part", "far out"],
)
def test_an_endless_list_of_parts_is_refused(extents: str) -> None:
    begun = time.monotonic()
    parameters = {"pid": "1", "fd": "1", "segment": SEGMENT, "size": "8192", "extents": extents}
    with pytest.raises(OfferRefused):
        Offer.of(parameters, ONE)
    assert time.monotonic() - begun < 5
