"""A pool whose workers have little room for training arrays: who gets a run, who refuses it, and what makes
room again."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from env_broker.relay import MAX_PLACEMENTS
from env_client import ArrayBudgetError, EnvClient
from env_client.batch import Batch
from env_client.tally import Tally
from env_worker import ArrayKeeper
from env_worker.config import WorkerSettings
from env_worker.server import WorkerServer
from tests.helpers.history import History
from tests.helpers.raw_client import connected
from tests.helpers.runner_harness import within
from tests.helpers.stub_client import StubClient, new_id
from tests.helpers.worker_server import ENDLESS, SMALL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from env_broker.pool import Worker
    from env_broker.server import BrokerServer

EPISODE_BYTES = 8192
"""What one episode of SMALL takes: a page for the header, and one for all the rest."""
OWNER = "a test"


@dataclass
class Pool:
    """A broker, its workers with their keepers, and a client."""

    broker: BrokerServer
    client: StubClient
    workers: list[WorkerServer]
    keepers: list[ArrayKeeper]

    @property
    def held(self) -> list[int]:
        """Episodes that each worker holds."""
        return [keeper.held_arrays for keeper in self.keepers]

    def of_pool(self, number: int) -> Worker:
        """What the broker knows of that worker."""
        worker = self.broker.pool.get(self.workers[number].instance)
        assert worker is not None
        return worker

    async def run(self, request_id: str | None = None) -> str:
        """One run; how it ended."""
        outcome = await self.client.run(SMALL, request_id=request_id or new_id(), owner=OWNER)
        return outcome.reason or outcome.code

    async def fill(self) -> None:
        """Run until one is refused."""
        async with asyncio.timeout(20):
            while (ended := await self.run()) == "OK":
                pass
        assert ended == "ARRAY_BUDGET"

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for what nobody tells, one event-loop turn at a time."""
        async with asyncio.timeout(20):
            while not reached():  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0)

    async def until_open(self, number: int) -> None:
        """Wait until that worker would be asked again: it has said that there is room."""
        await self.until(lambda: self.of_pool(number).open_for_runs)

    async def beats(self, number: int, count: int) -> None:
        """Wait for so many heartbeats of that worker."""
        for _ in range(count):
            reported = self.of_pool(number).reported_at
            await self.until(lambda reported=reported: self.of_pool(number).reported_at != reported)  # type: ignore[misc]

    def nothing_is_reserved(self) -> None:
        """No run is left that has room reserved."""
        assert [keeper.array_store.stats().reservations for keeper in self.keepers] == [0] * len(self.keepers)


@asynccontextmanager
async def pool(
    *rooms: int, max_concurrent: int = 8, heartbeat_seconds: float = 0.05, lease_seconds: float = 5.0
) -> AsyncIterator[Pool]:
    """A pool of workers with room for so many episodes each."""
    async with AsyncExitStack() as stack:
        broker, _ = await stack.enter_async_context(
            connected(heartbeat_seconds=heartbeat_seconds, lease_seconds=lease_seconds)
        )
        client = await stack.enter_async_context(StubClient(broker.address, History()))
        found = Pool(broker, client, [], [])
        for room in rooms:
            keeper = ArrayKeeper(memory_bytes=room * EPISODE_BYTES)
            worker = WorkerServer(
                WorkerSettings(
                    environments=("synthetic",), broker=broker.address, max_concurrent=max_concurrent
                ),
                hook=keeper,
            )
            await worker.start()
            stack.push_async_callback(worker.stop, hurry=True)
            found.workers.append(worker)
            found.keepers.append(keeper)
        await found.until(lambda: [w.reachable for w in broker.pool.workers()] == [True] * len(rooms))
        yield found
        found.nothing_is_reserved()
        for worker in found.workers:
            await within(worker.runner.wait_replied())
        found.nothing_is_reserved()


async def test_runs_go_to_the_worker_that_has_room() -> None:
    async with pool(1, 5) as found:
        assert [await found.run() for _ in range(6)] == ["OK"] * 6
        assert found.held == [1, 5], "the full worker is the idle one, and yet it is passed over"
        assert [keeper.held_array_bytes for keeper in found.keepers] == [EPISODE_BYTES, 5 * EPISODE_BYTES]


async def test_where_all_are_full_a_run_is_refused_until_arrays_are_released() -> None:
    async with pool(1, 2) as found:
        await found.fill()
        assert found.held == [1, 2]
        run = new_id()
        for _ in range(2):  # it had no effect anywhere, so its id is not spent
            outcome = await found.client.run(SMALL, request_id=run)
            assert (outcome.code, outcome.reason) == ("RESOURCE_EXHAUSTED", "ARRAY_BUDGET")
            assert outcome.retry_seconds == 1.0
            assert "release arrays that were fetched" in outcome.message
        assert found.broker.dispatcher.queued == 0
        assert found.keepers[1].array_store.release_owner(OWNER).released == 2
        await found.until_open(1)
        assert not found.of_pool(0).open_for_runs
        assert await found.run(run) == "OK"
        assert found.held == [1, 1]


async def test_a_discarded_episode_makes_room_too() -> None:
    async with pool(1) as found:
        outcome = await found.client.run(SMALL)
        assert outcome.code == "OK"
        assert await found.run() == "ARRAY_BUDGET"
        assert await found.client.cancel(outcome.run) == "DISCARDED"
        await found.until(lambda: found.held == [0])
        await found.until_open(0)
        assert await found.run() == "OK"


async def test_many_runs_at_once_take_no_more_than_there_is_and_leave_nothing_reserved() -> None:
    async with pool(3, 2) as found:
        assert [await found.run(), await found.run()] == ["OK", "OK"]
        assert found.held == [1, 1], "from now on both know how large an episode is"
        ends = await asyncio.gather(*(found.run() for _ in range(24)))
        assert set(ends) <= {"OK", "ARRAY_BUDGET"}
        assert 2 + ends.count("OK") == sum(found.held) <= 5
        for number, room in enumerate((3, 2)):
            if found.held[number] < room:  # what was refused for others' reservations is asked again
                await found.until_open(number)
        await found.fill()
        assert found.held == [3, 2]


async def test_a_busy_worker_that_has_room_is_waited_for_although_the_full_one_is_idle() -> None:
    async with pool(1, 9, max_concurrent=1) as found:
        while found.held[0] == 0:
            assert await found.run() == "OK"
        busy = found.client.start(ENDLESS)
        await found.until(lambda: found.of_pool(1).busy == 1)
        kept = found.held[1]
        waiting = asyncio.create_task(found.run())
        await found.until(lambda: found.broker.dispatcher.queued == 1)
        refused = found.keepers[0].array_store.stats().refused_reservations
        await found.beats(0, 3)
        assert not waiting.done()
        assert found.keepers[0].array_store.stats().refused_reservations == refused, "it was asked in vain"
        assert await found.client.cancel(busy.run) == "ABORTED"
        await busy.finish()
        assert await waiting == "OK"
        assert found.held == [1, kept + 1]


async def test_runs_that_a_full_worker_refuses_keep_their_place() -> None:
    async with pool(1, 99, max_concurrent=4) as found:
        while found.held[0] == 0:
            assert await found.run() == "OK"
        busy = [found.client.start(ENDLESS) for _ in range(4)]
        await found.until(lambda: found.of_pool(1).busy == 4)
        ends: list[int] = []

        async def run(number: int) -> None:
            assert await found.run() == "OK"
            ends.append(number)

        runs = []
        for number in range(12):
            runs.append(asyncio.create_task(run(number)))
            await found.until(lambda number=number: found.broker.dispatcher.queued == number + 1)  # type: ignore[misc]
        # A heartbeat of an older version says nothing of room: four are sent to it, and come back.
        broker = found.broker
        refused = found.keepers[0].array_store.stats().refused_reservations
        for _ in range(MAX_PLACEMENTS + 1):
            broker.pool.relent(found.workers[0].instance)
            broker.dispatcher.reconsider()
            assert broker.dispatcher.queued == 8
            await found.until(lambda: broker.dispatcher.queued == 12)
            refused += 4
            assert found.keepers[0].array_store.stats().refused_reservations == refused
        # One slot, so that they end in the order in which they begin.
        assert await found.client.cancel(busy[0].run) == "ABORTED"
        await busy[0].finish()
        await asyncio.gather(*runs)
        assert ends == list(range(12))
        for other in busy[1:]:
            await found.client.cancel(other.run)
            await other.finish()


async def test_that_there_is_room_again_is_said_at_once_and_not_with_the_next_heartbeat() -> None:
    async with pool(1, heartbeat_seconds=500.0, lease_seconds=1000.0) as found:
        await found.fill()
        assert not found.of_pool(0).open_for_runs
        found.keepers[0].array_store.release_owner(OWNER)
        await found.until_open(0)
        assert await found.run() == "OK"


async def test_the_pools_view_says_of_a_worker_that_it_is_full() -> None:
    async with pool(1) as found:
        await found.fill()

        def said() -> str:
            (view,) = found.broker.observer.view.take().workers
            assert view.held_array_bytes in (0, EPISODE_BYTES)
            return view.detail if view.held_array_bytes else ""

        await found.until(lambda: said().startswith("array budget full: no room for the training arrays"))
        found.keepers[0].array_store.release_owner(OWNER)
        await found.until(lambda: said() == "" and found.of_pool(0).load.held_array_bytes == 0)


class ReleasingDisplay:
    """Releases everything when it hears that there is no room."""

    interval_seconds = 1000.0

    def __init__(self, found: Pool) -> None:
        self.said: list[str] = []
        self._found = found

    def show(self, tally: Tally) -> None: ...

    def say(self, text: str) -> None:
        self.said.append(text)
        for keeper in self._found.keepers:
            keeper.array_store.release_owner(OWNER)


async def test_a_batch_waits_for_room_and_goes_on() -> None:
    async with pool(1, 2) as found, EnvClient(found.broker.address, owner=OWNER) as client:
        display, tally = ReleasingDisplay(found), Tally(5)
        async with asyncio.timeout(30):
            await Batch(client, [SMALL], tally, None).run(1, display)
        assert {name: group.outcomes for name, group in tally.by_outcome.items()} == {"ok": 5}
        (said,) = display.said
        assert "takes no more runs now" in said
        assert "ARRAY_BUDGET" in said


async def test_a_batch_that_may_not_wait_has_the_refusal_as_its_outcome() -> None:
    async with pool(1) as found, EnvClient(found.broker.address, owner=OWNER) as client:
        tally = Tally(3)
        display = ReleasingDisplay(found)
        await Batch(client, [SMALL], tally, None, wait_seconds=0.5).run(1, display)
        assert {name: group.outcomes for name, group in tally.by_outcome.items()} == {
            "ok": 1,
            "ArrayBudgetError": 2,
        }
        assert display.said == []


async def test_the_client_raises_an_error_of_its_own() -> None:
    async with pool(1) as found, EnvClient(found.broker.address, owner=OWNER) as client:
        await found.fill()
        with pytest.raises(ArrayBudgetError) as refused:
            await client.run(SMALL)
        assert refused.value.retry_after == 1.0
