"""Fixtures of the client's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.helpers.deltas import opening
from tests.helpers.scripted_service import Hang, ScriptedService, Send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    """A scripted server; what it was told to expect must have come when the test ends."""
    with ScriptedService() as scripted:
        yield scripted


@pytest.fixture
def hanging_run(service: ScriptedService) -> Callable[[], None]:
    """Makes the service ready for a run (which need not come) that opens a trace and then says no more."""

    def prepare() -> None:
        service.on_run(Send(opening()), Hang(), optional=True)

    return prepare
