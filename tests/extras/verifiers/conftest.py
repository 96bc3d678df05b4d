"""One worker for the tests that leave it as it is: it takes seconds to load the package."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.extras.verifiers.stage import stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.extras.verifiers.stage import Stage


@pytest.fixture(scope="session")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """Engine, broker and worker, with all environments."""
    async with stage(tmp_path_factory.mktemp("verifiers")) as made:
        yield made
