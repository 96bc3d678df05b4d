"""Fixtures for every test: what a test starts is ended, and what it holds up is let go."""

from __future__ import annotations

import itertools
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from tests.helpers.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def new_gate(tmp_path: Path) -> Iterator[Callable[[], Gate]]:
    """Makes gates, which are open for good when the test ends."""
    numbers = itertools.count()
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Gate(tmp_path / f"gate-{next(numbers)}")))
