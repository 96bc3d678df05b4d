"""Runs that are abandoned while their engine works: its HTTP request is closed, and no other follows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from env_client import EnvError
from env_client.request import Endpoint, new_request_id
from tests.engine import Fault, ScriptedEngine, held, refused
from tests.helpers.engine_pool import EnginePool, engine_pool, task_of, user

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DEADLINE_SECONDS: Final = 3.0
FAULTS: Final = {
    "before any byte": held(),
    "in mid-body": Fault("stalled", gate="never"),
    "in a pause": refused(503, retry_after="60"),
}
ENDS: Final = {
    "leave": ("", ""),
    "cancel": ("CANCELLED", "CANCEL_REQUESTED"),
    "deadline": ("DEADLINE_EXCEEDED", "DEADLINE"),
}
"""Ways to abandon a run, and code and reason with which it ends then."""


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[EnginePool]:
    async with engine_pool() as pool:
        yield pool


async def abandon(pool: EnginePool, way: str, fault: str) -> None:
    """Abandon a run's second turn in this way."""
    async with ScriptedEngine(reply=lambda _asked: "one", faults=[Fault(), FAULTS[fault]]) as engine:
        run = new_request_id()
        stream = pool.client.stream(
            task_of([user("one")], [user("two")], [user("three")]),
            endpoint=Endpoint(engine.url, "vllm-chat"),
            request_id=run,
            timeout=DEADLINE_SECONDS if way == "deadline" else 60.0,
        )
        async with stream:
            ended = asyncio.create_task(stream.result())
            await engine.until(lambda engine: len(engine.requests) == 2)
            if fault == "in a pause":
                await engine.until(lambda engine: not engine.active)
            if way == "leave":
                ended.cancel()
            elif way == "cancel":
                assert await pool.client.cancel(run) == "ABORTED"
            outcome = (await asyncio.gather(ended, return_exceptions=True))[0]
        if way == "leave":
            assert isinstance(outcome, asyncio.CancelledError)
        else:
            assert isinstance(outcome, EnvError)
            assert (outcome.code, outcome.reason) in (ENDS[way], (ENDS[way][0], ""))
        asked = [record.outcome for record in engine.requests]
        if fault != "in a pause":
            await engine.until(lambda engine: engine.disconnected == 1)
            asked = [record.outcome for record in engine.requests]
            assert asked == ["answered", "disconnected"]
        # The worker has let go of the run, so nothing can follow.
        await pool.idle()
        assert [record.outcome for record in engine.requests] == asked


async def test_the_engine_hears_of_every_way_to_abandon_a_run(pool: EnginePool) -> None:
    await asyncio.gather(*(abandon(pool, way, fault) for way in ENDS for fault in FAULTS))


async def test_the_next_run_of_the_same_worker_is_well(pool: EnginePool) -> None:
    """Connections that were broken off are not used again."""
    async with ScriptedEngine(reply=lambda _asked: "one", faults=[held()]) as engine:
        async with pool.client.stream(
            task_of([user("one")]), endpoint=Endpoint(engine.url, "vllm-chat")
        ) as stream:
            reading = asyncio.create_task(stream.result())
            await engine.until(lambda engine: engine.active == 1)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        episodes = await asyncio.gather(
            *(pool.play(engine, "vllm-chat", task_of([user("one")], [user("two")])) for _ in range(8))
        )
        assert all(episode.head.ok for episode in episodes)
        await engine.until(lambda engine: engine.disconnected == 1)


async def test_a_pool_that_stops_closes_the_requests_of_its_runs() -> None:
    async with ScriptedEngine(faults=[held(), held()]) as engine:
        async with engine_pool("--isolate", "none") as pool:
            runs = [
                asyncio.create_task(pool.play(engine, "vllm-chat", task_of([user("one")]))) for _ in range(2)
            ]
            await engine.until(lambda engine: engine.active == 2)
            pool.broker.process.terminate()
            ended = await asyncio.gather(*runs, return_exceptions=True)
            assert all(isinstance(error, EnvError) for error in ended)
        await engine.until(lambda engine: engine.disconnected == 2)
