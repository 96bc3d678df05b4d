"""Hooks in worker processes report what they see through a named pipe, so that a test can wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

from tests.helpers.history import (
    CancelAnswered,
    CancelSent,
    ConfirmAnswered,
    DiscardRaised,
    DiscardReturned,
    Ended,
    History,
    KeepBegan,
    KeepRaised,
    KeepReturned,
    Record,
    Uncertain,
    from_line,
    to_line,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_DELIVERED = frozenset({"TOO_LATE", "CONFIRMED"})
VARIABLE = "ENVTRIO_TEST_HISTORY"
"""The environment variable with the path of the pipe, or of a file, that records are appended to."""


class HistoryPipe:
    """The reading end. Belongs to the running event loop; `history` grows while the loop runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.history = History()
        os.mkfifo(path)
        # Both ends, so that the pipe lives on while no worker has it open.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    @property
    def variables(self) -> Mapping[str, str]:
        """What a worker process needs in its environment."""
        return {VARIABLE: str(self.path)}

    async def seen(self, run: str, *kinds: type[Record], timeout: float = 10.0) -> Record:
        """Wait for the first record of `run` of one of these kinds. TimeoutError naming what did come."""
        try:
            async with asyncio.timeout(timeout):
                while not (found := self.history.of(run, *kinds)):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            wanted = " or ".join(kind.__name__ for kind in kinds)
            came = [type(record).__name__ for record in self.history.of(run, Record)]
            raise TimeoutError(f"run {run[:8]}: no {wanted} within {timeout} s; there is {came}") from None
        return found[0]

    async def at_rest(self, runs: Sequence[str], timeout: float = 10.0) -> History:
        """The history of these runs, once their hooks have come to the ends that the oracle expects.

        And once all cancels were answered: a client in another process sends its own for what failed.

        What does not come in time is left to the oracle, which knows the promise by name.
        """
        with contextlib.suppress(TimeoutError):
            for run in runs:
                if self.history.of(run, KeepBegan) and not self.history.kept_died(run):
                    await self.seen(run, KeepReturned, KeepRaised, timeout=timeout)
                    if owes_discard(self.history, run):
                        await self.seen(run, DiscardReturned, DiscardRaised, timeout=timeout)
            async with asyncio.timeout(timeout):
                # What this process notes itself is told to nobody.
                while any(self._unanswered(run) for run in runs):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        return self.history.only(runs)

    def _unanswered(self, run: str) -> bool:
        return len(self.history.of(run, CancelSent)) > len(self.history.of(run, CancelAnswered))

    def close(self) -> None:
        """Stop reading."""
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    def _read(self) -> None:
        *lines, self._rest = (self._rest + os.read(self._fd, 2**20)).split(b"\n")
        for line in lines:
            self.history.add(from_line(line))
        self._news.set()


def owes_discard(history: History, run: str) -> bool:
    """Whether the episode was kept, was not delivered, as far as is known, and its worker lives."""
    if not history.of(run, KeepBegan) or history.kept_died(run):
        return False
    answers = {answer.outcome for answer in history.of(run, CancelAnswered)}
    answers |= {answer.outcome for answer in history.of(run, ConfirmAnswered)}
    if "DISCARDED" in answers:
        return True
    ended_ok = any(end.code == "OK" for end in history.of(run, Ended))
    return not (ended_ok or answers & _DELIVERED or history.of(run, Uncertain))


class HistoryWriter(History):
    """The writing end, in another process: appends to what the variable names, and holds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._fd = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, record: Record) -> None:
        """Pass the record on. Safe in any thread: one write for each line."""
        os.write(self._fd, to_line(record))

    def close(self) -> None:
        """Stop writing."""
        os.close(self._fd)
