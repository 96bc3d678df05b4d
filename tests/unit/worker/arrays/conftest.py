"""The spare files are the process's, so each test begins without those that another one has left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.helpers.array_episodes import NO_SPARES

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def no_spares_of_other_tests() -> Iterator[None]:
    NO_SPARES.clear()
    yield
    NO_SPARES.clear()
