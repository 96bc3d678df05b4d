"""Fixtures for every test: what a test starts is ended, and what it holds up is let go."""

from __future__ import annotations

import itertools
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests.helpers.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.helpers.parallel import PoolScheduling
    from tests.helpers.stub_client import Transport


# How long an example takes is the machine's affair: on a busy one, a right answer must not fail for it.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> PoolScheduling | None:
    """Of `--dist loadfile`, as `make test` says: see `PoolScheduling`."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.helpers.parallel import PoolScheduling  # needs the plugin, which a run in one process does not

    return PoolScheduling(config, log)


@pytest.fixture
def new_gate(tmp_path: Path) -> Iterator[Callable[[], Gate]]:
    """Makes gates, which are open for good when the test ends."""
    numbers = itertools.count()
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Gate(tmp_path / f"gate-{next(numbers)}")))


@pytest.fixture(params=["run", "session"])
def transport(request: pytest.FixtureRequest) -> Transport:
    """How a stub client carries its runs: each by a Run of its own, and all in the stream of a session. A
    test that is about one of the two says so by `parametrize`."""
    transport: Transport = request.param
    return transport
