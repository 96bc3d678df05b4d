"""Full tables, lost links and tries that come to an end, without a network."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from envtrio.v1 import env_service_pb2

from env_broker.cancel import SILENCE_SECONDS, Canceller
from env_broker.dispatch import Dispatcher
from env_broker.held_request import HeldRequest
from env_broker.pool import Pool
from env_broker.quiet import Quiet
from env_broker.relay import MAX_PLACEMENTS, Relay
from env_broker.routes import RouteTable
from env_broker.status import Refusal
from env_broker.supervisor import Supervisor
from env_broker.tasks import Errands
from tests.helpers.clock import FakeClock
from tests.helpers.stub_client import new_id

if TYPE_CHECKING:
    from env_broker.link import WorkerLink


class Hop:
    """A caller that is never written to."""

    async def admitted(self) -> None:
        raise AssertionError("nothing was admitted")

    async def send(self, message: bytes) -> None:
        raise AssertionError(f"nothing was sent, least of all {message!r}")

    def give_up(self, *, quietly: bool) -> None:
        raise AssertionError("nothing waits to be written")

    def time_remaining(self) -> float | None:
        return None


class Scene:
    """A relay over these routes, and workers that have no links."""

    def __init__(self, routes: RouteTable) -> None:
        self.clock = FakeClock()
        self.routes = routes
        self.pool = Pool(lease_seconds=60)
        self.errands = Errands()
        supervisor = Supervisor(0, clock=self.clock, on_change=lambda: None)
        dispatcher = Dispatcher(self.pool, max_queue=8, prospects=supervisor)
        links: dict[str, WorkerLink] = {}
        self.canceller = Canceller(
            routes=routes, links=links, dispatcher=dispatcher, errands=self.errands, clock=self.clock
        )
        self.relay = Relay(
            routes=routes,
            links=links,
            pool=self.pool,
            dispatcher=dispatcher,
            canceller=self.canceller,
            clock=self.clock,
            drains=lambda _: None,
            quiet=Quiet(),
            post_mortem=supervisor.last_words,
        )

    async def refused(self, request_id: str) -> Refusal:
        request = env_service_pb2.RunRequest(request_id=request_id, environment="e")
        with pytest.raises(Refusal) as error:
            await self.relay.carry(HeldRequest(request, b""), Hop())
        return error.value


async def test_a_full_route_table_refuses_runs() -> None:
    scene = Scene(RouteTable(limit=0))
    refusal = await scene.refused(new_id())
    assert (refusal.reason, refusal.retry_after) == ("TABLE_FULL", 1.0)


async def test_a_full_table_of_remembered_cancels_refuses_cancels() -> None:
    scene = Scene(RouteTable(remembered_limit=0))
    with pytest.raises(Refusal) as error:
        await scene.canceller.cancel(new_id(), "")
    assert error.value.reason == "TABLE_FULL"


async def test_workers_that_are_lost_before_the_run_reaches_them() -> None:
    scene, run = Scene(RouteTable()), new_id()
    scene.pool.add("w", "lease", "a:1", ["e"], 1, 60.0, 0.0)
    refusal = await scene.refused(run)
    assert (refusal.reason, refusal.metadata["limit"]) == ("NOT_ADMITTED", str(MAX_PLACEMENTS))
    assert scene.pool.workers()[0].busy == 0
    assert scene.routes.get(run) is None
    assert (await scene.refused(run)).reason == "NOT_ADMITTED"  # its id stays free


async def test_the_brokers_own_cancels_are_repeated_and_come_to_an_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene, run = Scene(RouteTable()), new_id()
    scene.routes.queue(run, "", 0.0)
    scene.routes.place(run, "a worker without a link")
    scene.canceller.tell(run, "a test")
    tries = 0
    while len(scene.errands):
        await scene.clock.sleepers(1)
        tries += 1
        scene.clock.advance(SILENCE_SECONDS)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert tries == 8
    assert "WORKER_SILENT" not in caplog.text
    assert "given up after 8 tries" in caplog.text
    assert run not in caplog.text


async def test_a_worker_that_has_left_again_is_not_told() -> None:
    scene = Scene(RouteTable())
    scene.canceller.tell_worker("left", new_id(), "a test")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(scene.errands) == 0


async def test_what_nothing_else_would_do_is_begun_beyond_the_limit() -> None:
    done: list[str] = []

    async def work(name: str) -> None:
        done.append(name)

    errands = Errands(limit=0)
    assert not errands.start(work("refused"), "a test")
    assert errands.start(work("begun"), "a test", always=True)
    await errands.close(10)
    assert done == ["begun"]


async def test_a_lost_sessions_runs_are_cancelled_where_there_are_too_many_errands() -> None:
    scene, run, session = Scene(RouteTable()), new_id(), new_id()
    scene.errands._limit = 0  # type: ignore[misc]
    scene.routes.queue(run, session, 0.0)
    scene.canceller.lose_sessions({session})
    await scene.errands.close(10)
    assert scene.routes.get(run) is None
