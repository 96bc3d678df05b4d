"""A client for the scripted engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from tests.engine import ScriptedEngine

    Ask = Callable[..., Awaitable[tuple[int, dict[str, Any]]]]


@pytest.fixture(scope="module")
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def ask(session: aiohttp.ClientSession) -> Ask:
    async def ask(engine: ScriptedEngine, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        async with session.post(f"{engine.root}/{path}", json=body) as response:
            return response.status, await response.json(content_type=None)

    return ask
