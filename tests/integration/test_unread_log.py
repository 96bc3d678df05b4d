"""A broker and a worker whose standard error is read by nobody, and then by somebody who has gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.helpers.history import History
from tests.helpers.pools import ROOT
from tests.helpers.stub_client import StubClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SECONDS = 20.0
HARMFUL = "harmful=tests.helpers.harmful_environment:HarmfulEnvironment"
FILLER = b"what was there before\n"
QUICK = ("--drain-seconds", "0", "--linger-seconds", "0")


class Unread:
    """A process whose standard error is a pipe that is full already."""

    def __init__(self, process: asyncio.subprocess.Process, source: int) -> None:
        self.process = process
        self.source = source

    async def listening(self) -> str:
        """Its address."""
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), SECONDS)
        return line.decode().split()[-1]

    async def read(self, words: str) -> str:
        """Read its standard error up to these words."""
        said = ""
        async with asyncio.timeout(SECONDS):
            while words not in said:
                said += (await asyncio.to_thread(os.read, self.source, 65_536)).decode()
        return said

    def nobody_is_there(self) -> None:
        """Its reader has gone."""
        os.close(self.source)
        self.source = -1


@asynccontextmanager
async def unread(module: str, *arguments: str) -> AsyncIterator[Unread]:
    """`python -m module serve ...`, until its end, which must be in order."""
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(sink, FILLER)
    os.set_blocking(sink, True)
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            module,
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--env",
            HARMFUL,
            *arguments,
            *QUICK,
        ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=sink,
        cwd=ROOT,
    )
    os.close(sink)
    server = Unread(process, source)
    try:
        yield server
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), SECONDS) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        if server.source >= 0:
            os.close(server.source)


async def test_a_broker_goes_on_and_so_do_environments_that_print() -> None:
    prints = {"do": [["trace"], ["print", "x" * 20_000]]}
    async with (
        unread("env_broker", "--workers", "1") as broker,
        StubClient(await broker.listening(), History()) as client,
    ):
        await client.until_serving()
        for _ in range(8):
            assert (await client.run(prints, environment="harmful", timeout=SECONDS)).code == "OK"
        said = await broker.read("slot=0 pid=")
        assert said.startswith(FILLER.decode())
        broker.nobody_is_there()
        for _ in range(8):
            outcome = await client.run(prints, environment="harmful", timeout=SECONDS)
            assert outcome.code == "OK"
            assert outcome.messages[-1].reply.head.ok, "and its prints did not fail"


async def test_a_worker_goes_on() -> None:
    async with (
        unread("env_worker", "--log-level", "debug") as worker,
        StubClient(await worker.listening(), History()) as client,
    ):
        await client.until_serving()
        for _ in range(8):
            assert (await client.run({"do": [["trace"]]}, environment="harmful")).code == "OK"
        await worker.read("level=DEBUG")
