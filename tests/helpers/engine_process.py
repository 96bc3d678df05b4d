"""A scripted engine in a process of its own, for turns so large that they would hold up the test's loop."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp

from tests.helpers.pools import ROOT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class EngineProcess(NamedTuple):
    """It serves at the base URL `url`."""

    url: str

    async def order(self, **orders: Any) -> None:
        """Script it; see `tests.engine.control`."""
        address = f"{self.url.removesuffix('/v1')}/control"
        async with aiohttp.ClientSession() as session, session.post(address, json=orders) as answer:
            assert answer.status == 200, await answer.text()


@asynccontextmanager
async def engine_process(*arguments: str) -> AsyncIterator[EngineProcess]:
    """Of `python -m tests.engine` with these arguments."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.engine", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        url = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
        yield EngineProcess(url)
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), 20)
