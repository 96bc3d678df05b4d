"""A run whose coroutine is closed, not cancelled, as happens when an event loop is torn down."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from env_client import EnvClient
from tests.helpers.deltas import episode_stream
from tests.helpers.scripted_service import Hang, Send
from tests.helpers.scripted_session import SessionLine

if TYPE_CHECKING:
    from tests.helpers.scripted_service import ScriptedService

RUN = "0123456789abcdef0123456789abcdef"
TRANSPORTS = ("run", "lane")


async def test_a_coroutine_that_is_closed_while_it_waits_for_the_answer(confirming: ScriptedService) -> None:
    held, sessions = threading.Event(), confirming.sessions
    assert sessions is not None
    confirming.on_session(SessionLine(held=held))
    confirming.on_run(*[Send(message) for message in episode_stream()])
    client = EnvClient(confirming.address)
    inner = client.run({}, request_id=RUN)

    class Torn:
        """A loop that is torn down: its coroutines are closed where they are, without a cancel."""

        def __await__(self) -> Any:
            try:
                yield from inner.__await__()
            except asyncio.CancelledError:
                inner.close()
                raise

    async def torn() -> None:
        await Torn()

    task = asyncio.create_task(torn())
    await asyncio.to_thread(sessions.wait_until, lambda came: came.frames == [[RUN]])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    held.set()
    await client.close()
    assert confirming.cancelled_ids() == [RUN]


NEVER_CLOSED = """
import asyncio, sys
from env_client import EnvClient

async def main():
    global client, run
    client = EnvClient(sys.argv[1])
    run = client.run({})
    run.send(None)  # It waits, and nobody comes back to it.

asyncio.run(main())
"""


def test_a_coroutine_that_nobody_closes_does_not_hold_up_the_end_of_the_interpreter(
    confirming: ScriptedService,
) -> None:
    confirming.on_run(Hang(), optional=True)
    command = [sys.executable, "-c", NEVER_CLOSED, confirming.address]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert finished.returncode == 0
