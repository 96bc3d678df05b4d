"""Cancels leave although the loop, or the interpreter, ends."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.helpers.deltas import episode_stream
from tests.helpers.scripted_service import Send
from tests.helpers.scripted_session import SessionLine

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.scripted_service import ScriptedService

A = "a" * 32


def in_a_process(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=50, check=False
    )


AT_EXIT: dict[str, str] = {
    "a courier that nobody closed": """
import sys
from env_client.channels import open_sync_channel
from env_client.courier import CancelCourier
CancelCourier(lambda: open_sync_channel(sys.argv[1], None)).send("a" * 32, "exit")
""",
    "a loop that ends under its runs": """
import asyncio, sys
from env_client import EnvClient
async def main():
    landed = asyncio.Event()
    client = EnvClient(sys.argv[1])
    run = asyncio.create_task(client.run({}, request_id="a" * 32, on_delta=lambda _: landed.set()))
    await landed.wait()
asyncio.run(main())
""",
    "Ctrl-C": """
import asyncio, os, signal, sys
from env_client import EnvClient
async def main():
    async with EnvClient(sys.argv[1]) as client:
        await client.run({}, request_id="a" * 32, on_delta=lambda _: os.kill(os.getpid(), signal.SIGINT))
asyncio.run(main())
""",
    "Ctrl-C in the synchronous client": """
import os, signal, sys, threading
from env_client import SyncEnvClient
landed = threading.Event()
def interrupt():
    landed.wait()
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
with SyncEnvClient(sys.argv[1]) as client:
    client.run({}, request_id="a" * 32, on_delta=lambda _: landed.set())
""",
}


UNCONFIRMED = """
import asyncio, sys
from env_client import EnvClient
async def main():
    last = asyncio.Event()
    client = EnvClient(sys.argv[1])
    on_delta = lambda delta: delta.seq == 2 and last.set()
    run = asyncio.create_task(client.run({}, request_id="a" * 32, on_delta=on_delta))
    await last.wait()
asyncio.run(main())
"""


def test_a_loop_that_ends_under_an_unconfirmed_run(confirming: ScriptedService) -> None:
    confirming.on_session(SessionLine(answering=lambda _: None))
    confirming.on_run(*[Send(message) for message in episode_stream()])
    finished = in_a_process(UNCONFIRMED, confirming.address)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert confirming.cancelled_ids() == [A]
    assert confirming.sessions is not None
    confirming.sessions.wait_until(lambda came: came.ends == ["lost"])


@pytest.mark.parametrize("script", AT_EXIT.values(), ids=AT_EXIT.keys())
def test_cancels_leave_at_the_end_of_the_interpreter(
    service: ScriptedService, hanging_run: Callable[[], None], script: str
) -> None:
    hanging_run()
    finished = in_a_process(script, service.address)
    assert service.cancelled_ids() == [A], finished.stderr
