"""Holds up what a worker's session streams write, as a client does that does not read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from env_worker.session_stream import SessionStream
from tests.helpers.runner_harness import SECONDS

if TYPE_CHECKING:
    import pytest


class HeldWrites:
    """From `hold` to `go` each message waits in its write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._here = asyncio.Event()
        write = SessionStream._write

        async def held(stream: SessionStream, context: Any) -> None:
            await write(stream, _Context(context, self))  # type: ignore[arg-type]

        monkeypatch.setattr(SessionStream, "_write", held)

    def hold(self) -> None:
        """Hold up what is written from now on."""
        self._open.clear()
        self._here.clear()

    def go(self) -> None:
        """Let all go on."""
        self._open.set()

    async def reached(self) -> None:
        """Wait until a message waits."""
        async with asyncio.timeout(SECONDS):
            await self._here.wait()

    async def passed(self) -> None:
        """For the write of a message."""
        self._here.set()
        await self._open.wait()


class _Context:
    def __init__(self, context: Any, held: HeldWrites) -> None:
        self._context = context
        self._held = held

    async def write(self, data: bytes) -> None:
        await self._held.passed()
        await self._context.write(data)
