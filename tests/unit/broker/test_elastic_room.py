"""An elastic pool whose workers have no room for training arrays: who is started, which runs wait for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from env_broker.config import BrokerSettings
from env_broker.dispatch import Dispatcher
from env_broker.elastic import Elastic
from env_broker.pool import Pool, Worker
from env_broker.status import Refusal
from tests.helpers.clock import FakeClock
from tests.helpers.stub_client import new_id

if TYPE_CHECKING:
    from env_broker.supervisor import Supervisor


class Workers:
    """The broker's own workers, which register when the test says so."""

    def __init__(self) -> None:
        self.instances: set[str] = set()
        self.starting = self.failing = self.leaving = 0
        self.hopeless = False

    @property
    def size(self) -> int:
        return len(self.instances) + self.starting

    def hopeful(self) -> bool:
        return self.starting > 0 and not self.hopeless

    def detail(self) -> str:
        return ""

    def look(self, leased: set[str]) -> None: ...

    def grow(self, count: int) -> None:
        self.starting += count


class Scene:
    """An elastic pool of up to three workers, each of them with two slots."""

    def __init__(self, **settings: Any) -> None:
        self.pool = Pool(lease_seconds=60)
        self.local = Workers()
        self.dispatcher = Dispatcher(
            self.pool,
            max_queue=99,
            prospects=self.local,
            may_grow=lambda environment: self.elastic.may_grow(environment),
        )
        bounds = {"min_workers": 1, "max_workers": 3, "max_concurrent": 2}
        self.elastic = Elastic(
            BrokerSettings(**{"environments": ("e",), **bounds, **settings}),
            pool=self.pool,
            dispatcher=self.dispatcher,
            supervisor=cast("Supervisor", self.local),
            drain=lambda instance, cause: False,
            clock=FakeClock(),
        )

    def join(self, name: str, *environments: str, own: bool = True, slots: int = 2) -> Worker:
        worker = self.pool.add(name, name, name, environments or ("e",), slots, 60.0, 0.0)
        if own:
            self.local.instances.add(name)
            self.local.starting = max(0, self.local.starting - 1)
        self.dispatcher.reconsider()
        return worker

    async def run(self, environment: str = "e") -> asyncio.Task[Worker]:
        """One that has come."""
        task = asyncio.create_task(self.dispatcher.acquire(new_id(), environment))
        await asyncio.sleep(0)
        return task


async def refused(task: asyncio.Task[Worker]) -> str:
    with pytest.raises(Refusal) as error:
        await task
    return error.value.reason


async def test_runs_wait_while_the_pool_grows_up_to_its_most_and_are_refused_then() -> None:
    scene = Scene()
    full = scene.join("1")
    scene.elastic.look()
    scene.dispatcher.full(full, "full")
    scene.elastic.look()
    assert scene.local.size == 1, "nobody needs another"
    waiting = [await scene.run()]
    scene.elastic.look()
    assert (scene.local.starting, waiting[0].done()) == (1, False)
    scene.elastic.look()
    assert scene.local.starting == 1
    two = scene.join("2")
    assert await waiting.pop() is two
    scene.dispatcher.full(two, "full")
    waiting = [await scene.run() for _ in range(2)]
    scene.elastic.look()
    assert scene.local.size == 3
    three = scene.join("3")
    assert [await task for task in waiting] == [three, three]
    waiting = [await scene.run()]
    assert not waiting[0].done()
    scene.dispatcher.full(three, "full")
    assert await refused(waiting[0]) == "ARRAY_BUDGET"
    assert await refused(await scene.run()) == "ARRAY_BUDGET"
    scene.elastic.look()
    assert scene.local.size == 3


async def test_a_worker_with_room_for_something_else_does_not_keep_the_pool_from_growing() -> None:
    scene = Scene(environments=("e", "f"))
    scene.dispatcher.full(scene.join("1", "e", "f"), "full")
    scene.join("theirs", "f", own=False, slots=100)
    scene.elastic.look()
    waiting = await scene.run("e")
    scene.elastic.look()
    assert (scene.local.starting, waiting.done()) == (1, False)
    waiting.cancel()


async def test_a_run_of_what_local_workers_do_not_serve_waits_for_none_of_them() -> None:
    scene = Scene()
    scene.join("1")
    scene.elastic.look()
    scene.dispatcher.full(scene.join("theirs", "f", own=False), "full")
    assert await refused(await scene.run("f")) == "ARRAY_BUDGET"


async def test_where_starts_fail_or_the_pool_is_static_a_run_is_refused() -> None:
    scene = Scene()
    scene.dispatcher.full(scene.join("1"), "full")
    scene.elastic.look()
    waiting = await scene.run()
    scene.elastic.look()
    scene.local.hopeless = True
    scene.dispatcher.reconsider()
    assert await refused(waiting) == "ARRAY_BUDGET"
    static = Scene(min_workers=1, max_workers=1)
    static.dispatcher.full(static.join("1"), "full")
    static.elastic.look()
    assert await refused(await static.run()) == "ARRAY_BUDGET"
