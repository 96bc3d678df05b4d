"""Fixtures of the array clients' tests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from env_client import SyncArrayClient
from tests.helpers.array_segment import LARGE, SEGMENT, Segment
from tests.helpers.array_service import SECONDS
from tests.helpers.scripted_arrays import INSTANCE, Branch, ScriptedArrays

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


@pytest.fixture
def service() -> Iterator[ScriptedArrays]:
    """A scripted server; what it was told to expect must have come when the test ends."""
    with ScriptedArrays() as scripted:
        yield scripted


@pytest.fixture
def client() -> Iterator[SyncArrayClient]:
    """A client."""
    with SyncArrayClient(lost_seconds=SECONDS) as made:
        yield made


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
