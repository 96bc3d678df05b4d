"""What came to the engine, and what became of it."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PATIENCE: Final = 20.0
"""Seconds until a wait for something that should be so at once gives up."""

Outcome = Literal["under way", "answered", "refused", "faulted", "disconnected"]


@dataclass
class Record:
    """One request: `body` is its JSON, or None. "disconnected": the client closed it before its end."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    outcome: Outcome = "under way"

    @property
    def key(self) -> str:
        """The API key that it bore, or ""."""
        return self.headers.get("Authorization", "").removeprefix("Bearer ")


@dataclass
class RequestLog:
    """All of them, in the order in which they came."""

    records: list[Record] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, record: Record) -> None:
        """A request has come."""
        self.records.append(record)
        self._changed.set()

    def end(self, record: Record, outcome: Outcome) -> None:
        """What became of it."""
        record.outcome = outcome
        self._changed.set()

    def of(self, path: str) -> list[Record]:
        """Those whose path ends so."""
        return [record for record in self.records if record.path.endswith(path)]

    def count(self, outcome: Outcome) -> int:
        """How many came to this."""
        return sum(record.outcome == outcome for record in self.records)

    async def until(self, true: Callable[[], object]) -> None:
        """Wait for something that is so once a request came or ended. TimeoutError after `PATIENCE`."""
        async with asyncio.timeout(PATIENCE):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    def as_json(self) -> list[dict[str, Any]]:
        """For a test in another process."""
        return [asdict(record) | {"headers": dict(record.headers)} for record in self.records]
