"""A client that reads nothing costs bounded memory, and the others no time that matters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psutil

from tests.helpers import oracle
from tests.helpers.history import EnvironmentEnded
from tests.helpers.history_pipe import HistoryPipe
from tests.helpers.pools import HOOK, QUICK_STOP, SCRIPTED, serving
from tests.helpers.snapshot import descendants
from tests.helpers.stub_client import MIB, StubClient

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.stub_client import Outcome

OTHERS, RUNS_OF_EACH = 63, 2
NODES, NODE_BYTES = 128, MIB
SMALL = {"turns": 4, "tokens_per_turn": 32}
LARGE = {"script": [["trace"], *[["say", NODE_BYTES]] * NODES]}
BROKER_MIB = 32
"""Most that a reader may cost the broker: what the connections buffer, and a message or two."""
WORKER_MIB = NODES * NODE_BYTES // MIB + 32
"""In the worker the same, and the episode itself, which is there whoever reads it."""
SECONDS = 30.0


def resident(pid: int) -> float:
    """MiB of memory."""
    return float(psutil.Process(pid).memory_info().rss) / MIB


async def test_a_client_that_reads_nothing_beside_sixty_three_others(tmp_path: Path) -> None:
    pipe = HistoryPipe(tmp_path / "history")
    arguments = ("--workers", "1", "--max-concurrent", "64", "--env", "synthetic", "--env", SCRIPTED)
    arguments = (*arguments, "--hook", HOOK, *QUICK_STOP)
    async with (
        serving("env_broker", *arguments, variables=pipe.variables) as broker,
        # Two connections, so that the one that is not read is not the others'.
        StubClient(broker.address, pipe.history) as idle,
        StubClient(broker.address, pipe.history) as client,
    ):
        await client.until_serving()
        [worker] = descendants(broker.pid)

        async def lane() -> list[Outcome]:
            return [await client.run(SMALL, timeout=SECONDS) for _ in range(RUNS_OF_EACH)]

        async def others() -> list[str]:
            lanes = await asyncio.gather(*(lane() for _ in range(OTHERS)))
            return [outcome.code for outcomes in lanes for outcome in outcomes]

        assert set(await others()) == {"OK"}  # every buffer that they need is there now
        before = resident(broker.pid), resident(worker)
        unread = idle.start(LARGE, environment="scripted", timeout=None)
        await pipe.seen(unread.run, EnvironmentEnded)  # all of it is there, with nowhere to go
        codes = await others()
        assert codes == ["OK"] * OTHERS * RUNS_OF_EACH
        grown = resident(broker.pid) - before[0], resident(worker) - before[1]
        assert grown[0] < BROKER_MIB, grown
        assert grown[1] < WORKER_MIB, grown

        outcome = await unread.finish()
        assert outcome.code == "OK"
        assert outcome.received_bytes > NODES * NODE_BYTES
        [trace] = outcome.episode.traces
        assert [len(node.message.content[0].text) for node in trace.nodes] == [NODE_BYTES] * NODES
        runs = [*idle.runs, *client.runs]
        oracle.promises_hold(await pipe.at_rest(runs), asked=idle.asked + client.asked)
    pipe.close()
