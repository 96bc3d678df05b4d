"""Fixtures of the array clients' tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from env_client import SyncArrayClient
from tests.helpers.scripted_arrays import ScriptedArrays

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def service() -> Iterator[ScriptedArrays]:
    """A scripted server; what it was told to expect must have come when the test ends."""
    with ScriptedArrays() as scripted:
        yield scripted


@pytest.fixture
def client() -> Iterator[SyncArrayClient]:
    """A client that gives a lost worker up soon."""
    with SyncArrayClient(lost_seconds=0.5) as made:
        yield made
