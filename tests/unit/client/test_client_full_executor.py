"""A caller that has filled its loop's default executor: that is its own affair, and holds up no run."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from env_client import EnvClient
from tests.helpers.deltas import episode_stream, opening
from tests.helpers.scripted_service import Hang, Send

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.helpers.scripted_service import ScriptedService

RUN = "0123456789abcdef0123456789abcdef"
TRANSPORTS = ("run", "lane")
SECONDS = 20.0
BIG = 200_000  # Tokens: more than 1 MiB a message.


@pytest.fixture
async def full_executor() -> AsyncIterator[None]:
    """The one thread of the default executor waits until the test has ended."""
    go_on = threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    work = asyncio.ensure_future(asyncio.to_thread(go_on.wait, 3 * SECONDS))
    await asyncio.sleep(0)
    yield
    assert not work.done(), "it was not full all the time"
    go_on.set()
    await work


@pytest.mark.usefixtures("full_executor")
async def test_runs_with_big_messages_and_those_beside_them(confirming: ScriptedService) -> None:
    for _ in range(2):
        confirming.on_run(*[Send(message) for message in episode_stream(count=BIG)], script="big")
        confirming.on_run(*[Send(message) for message in episode_stream()], script="small")
    async with asyncio.timeout(SECONDS), EnvClient(confirming.address) as client:
        episodes = await asyncio.gather(*[client.run({"script": name}) for name in ("big", "small") * 2])
    assert [len(episode.traces[0].nodes) for episode in episodes] == [3] * 4


@pytest.mark.usefixtures("full_executor")
async def test_closing_says_what_is_owed(confirming: ScriptedService) -> None:
    confirming.on_run(Send(opening()), Hang())
    async with asyncio.timeout(SECONDS):
        async with EnvClient(confirming.address) as client, contextlib.AsyncExitStack() as stack:
            stream = await stack.enter_async_context(client.stream({}, request_id=RUN))
            await anext(stream)
        await client.close()  # Once more: nothing happens.
    assert confirming.cancelled_ids() == [RUN]
    assert confirming.sessions is not None
    assert confirming.sessions.ends == ["goodbye"]
