"""A broker that is told to stop fails nothing that it need not fail, and says that it stops."""

from __future__ import annotations

import asyncio
import io
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from env_client import EnvClient
from env_client.batch import Batch
from env_client.channels import open_aio_channel
from env_client.pool import why_not_ready
from env_client.tally import Tally
from tests.helpers.pools import serving
from tests.helpers.raw_client import connected, message
from tests.helpers.scripted_worker import Reach, ScriptedWorker, Send, Wait
from tests.helpers.stub_client import new_id

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 60.0
RUNS = 40


class Silent:
    """Shows nothing."""

    interval_seconds = 1000.0

    def show(self, tally: Tally) -> None:
        pass

    def say(self, text: str) -> None:
        pass


class Written(io.StringIO):
    """Calls `then` when so many lines were written."""

    def __init__(self, lines: int, then: Callable[[], object]) -> None:
        super().__init__()
        self._left, self._then = lines, then

    def write(self, text: str) -> int:
        self._left -= 1
        if self._left == 0:
            self._then()
        return super().write(text)


async def test_a_restart_in_good_order_costs_no_run_of_a_batch() -> None:
    loop, some = asyncio.get_running_loop(), asyncio.Event()
    tally, out = Tally(RUNS), Written(RUNS // 4, lambda: loop.call_soon_threadsafe(some.set))
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(serving("env_broker", "--workers", "0"))
        joins = ("--env", "synthetic", "--broker", first.address)
        await stack.enter_async_context(serving("env_worker", *joins))
        client = await stack.enter_async_context(EnvClient(first.address))
        tasks = [{"turns": 3, "turn_seconds": 0.02 * index} for index in range(1, 6)]
        running = asyncio.create_task(Batch(client, tasks, tally, out).run(10, Silent()))
        async with asyncio.timeout(SECONDS):
            await some.wait()
            first.process.send_signal(signal.SIGTERM)
            await first.process.wait()
            await stack.enter_async_context(
                serving("env_broker", "--workers", "0", "--listen", first.address)
            )
            await running
    assert first.process.returncode == 0
    assert {name: group.outcomes for name, group in tally.by_outcome.items()} == {"ok": RUNS}


async def test_a_broker_that_stops_says_so_while_its_workers_are_ready() -> None:
    run, here, go = new_id(), asyncio.Event(), asyncio.Event()
    async with (
        connected(drain_seconds=SECONDS) as (broker, client),
        ScriptedWorker() as worker,
        open_aio_channel(broker.address, None) as channel,
    ):
        await worker.register(broker.address)
        worker.script(run, Reach(here), Wait(go), Send(message("reply")))
        outcome = asyncio.create_task(client.run(run))
        await here.wait()
        assert await why_not_ready(channel) == "1 of 1 workers of the pool are ready"
        stopping = asyncio.create_task(broker.stop())
        await asyncio.sleep(0)  # it has begun
        assert await why_not_ready(channel) == (
            "the broker is stopping and takes no runs; 1 of 1 workers of the pool are ready"
        )
        go.set()
        assert (await outcome)[1] == "OK"
        await stopping
