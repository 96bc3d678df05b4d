"""Holds up a hook or an environment in a worker process until the test says go."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Gate:
    """A named pipe. Whoever passes reads one byte; closing the gate lets everyone through."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR)

    def open(self, times: int = 1) -> None:
        """Let so many pass, now or when they come."""
        os.write(self._fd, b"x" * times)

    def close(self) -> None:
        """Let through whoever waits."""
        os.close(self._fd)


def pass_blocking(path: str) -> None:
    """Wait at the gate in a thread."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.read(fd, 1)
    finally:
        os.close(fd)


async def pass_gate(path: str) -> None:
    """Wait at the gate in a task, which may be cancelled."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        while True:
            await ready.wait()
            try:
                os.read(fd, 1)
            except BlockingIOError:  # another waiter took the byte
                ready.clear()
            else:
                return
    finally:
        loop.remove_reader(fd)
        os.close(fd)
