"""A broker in this process with local workers as real processes, and what a test wants to know of them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from env_broker.config import BrokerSettings
from env_broker.server import BrokerServer
from env_client import EnvClient
from tests.helpers import oracle, selective_hook
from tests.helpers.history_pipe import HistoryPipe
from tests.helpers.pools import SCRIPTED
from tests.helpers.recorded_client import RecordedClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    import pytest

HARMFUL = "harmful=tests.helpers.harmful_environment:HarmfulEnvironment"
PATIENCE = 20


@dataclass
class LocalPool:
    """One of them."""

    broker: BrokerServer
    client: RecordedClient
    pipe: HistoryPipe
    held: Path
    sizes: list[int] = field(default_factory=list)
    """How many workers were kept, at each look."""
    _looked: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ready(self) -> int:
        """Workers that take runs."""
        return sum(worker.reachable and not worker.draining for worker in self.broker.pool.workers())

    async def until(self, true: Callable[[], object]) -> None:
        """Wait for something that is so when the pool looks after its workers, four times a second."""
        async with asyncio.timeout(PATIENCE):
            while not true():
                await self.looks(1)

    async def looks(self, count: int) -> None:
        """Return after so many looks."""
        for _ in range(count):
            self._looked.clear()
            await self._looked.wait()

    def watch(self) -> None:
        """Note each look."""
        look = self.broker._elastic.look

        def noted() -> None:
            look()
            self.sizes.append(self.broker.supervisor.size)
            self._looked.set()

        self.broker._elastic.look = noted  # type: ignore[method-assign]


@asynccontextmanager
async def local_pool(directory: Path, patch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[LocalPool]:
    """A pool whose workers are ready. When the test is over the oracle judges what became of its runs."""
    pipe = HistoryPipe(directory / "history")
    held = directory / "held"
    held.mkdir()
    for name, value in {**pipe.variables, selective_hook.VARIABLE: str(held)}.items():
        patch.setenv(name, value)
    values = {
        "environments": ("synthetic", SCRIPTED, HARMFUL),
        "hook": "tests.helpers.selective_hook:SelectiveHook",
        "heartbeat_seconds": 0.1,
        "lease_seconds": 3.0,
        "drain_seconds": 0.2,
        "linger_seconds": 0.2,
        **settings,
    }
    try:
        async with (
            BrokerServer(BrokerSettings(**values)) as broker,
            EnvClient(broker.address, env="synthetic", timeout=30.0) as client,
        ):
            pool = LocalPool(broker, RecordedClient(client, pipe.history), pipe, held)
            pool.watch()
            await pool.until(lambda: pool.ready == BrokerSettings(**values).least_workers)
            yield pool
            runs = pool.client.runs
            oracle.contract_holds(await pipe.at_rest(runs), asked=len(runs))
    finally:
        pipe.close()
