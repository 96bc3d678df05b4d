"""A run through the broker, disturbed at each of its suspension points in turn.

Whatever happens at whichever point: the client is told OK, or the worker, if the run was on its way there, is
told a Cancel (or is lost, or has said itself how the run ended); all who ask are told the same; and neither a
slot nor an open route is left.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from envtrio.v1 import env_service_pb2 as pb

from env_broker.held_request import HeldRequest
from env_broker.route import RouteState
from env_broker.status import Refusal
from env_broker.worker_cancel import PassedOn
from tests.helpers.raw_client import connected, message, run_request
from tests.helpers.scripted_worker import Abort, Admit, Reach, ScriptedWorker, Send
from tests.helpers.stub_client import new_id
from tests.helpers.suspensions import Moment, Suspensions, outcome_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from env_broker.server import BrokerServer
    from tests.helpers.lease import Lease
    from tests.helpers.raw_client import RawClient
    from tests.helpers.scripted_worker import Context, RecordedRun, Step

MESSAGES = [message("a"), message("b"), message("reply")]


@pytest.fixture(autouse=True, params=[False, True], ids=["run", "lane"])
def by_lane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the broker sends its runs to the worker in one stream, or each by a call of its own."""
    monkeypatch.setattr(ScriptedWorker, "carries_runs", request.param)
    return bool(request.param)


@dataclass
class RecordingHop:
    """A client that takes everything, each in an event-loop turn of its own."""

    taken: list[bytes] = field(default_factory=list)

    async def admitted(self) -> None:
        await asyncio.sleep(0)

    async def send(self, data: bytes) -> None:
        await asyncio.sleep(0)
        self.taken.append(data)

    def give_up(self, *, quietly: bool) -> None:
        """Nothing waits."""

    def time_remaining(self) -> float | None:
        return 20.0


class TruthfulWorker(ScriptedWorker):
    """Settles each run once, by its reply or by a Cancel, and answers accordingly."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, pb.CancelOutcome.ValueType] = {}
        """What cancels of settled runs are answered; a Cancel of one that has yet to come settles it too."""
        self.replied: set[str] = set()

    async def _step(self, step: Step, run: RecordedRun, context: Context) -> None:
        request_id = run.request.request_id
        if not isinstance(step, Reach):
            await super()._step(step, run, context)
        if request_id in self.outcomes:
            await super()._step(Abort(grpc.StatusCode.CANCELLED, "CANCEL_REQUESTED"), run, context)
        if isinstance(step, Reach):  # the reply was written, and nothing is awaited before the stream's OK
            self.replied.add(request_id)

    async def _cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        run = request.request_id
        if run not in self.outcomes:
            live, late = pb.CANCEL_OUTCOME_ABORTED, pb.CANCEL_OUTCOME_DISCARDED
            self.outcomes[run] = late if run in self.replied else live
            if run not in self.runs:
                self.cancel_lines[run] = [pb.CANCEL_OUTCOME_REMEMBERED]
        if not self.cancel_lines.get(run):
            self.cancel_lines[run] = [self.outcomes[run]]
        return await super()._cancel(request, context)


@dataclass
class World:
    broker: BrokerServer
    client: RawClient
    worker: TruthfulWorker
    lease: Lease
    run: str = ""
    asked: list[asyncio.Task[str]] = field(default_factory=list)
    """Cancels of others that were sent as the disturbance."""

    def fresh(self) -> tuple[Any, RecordingHop]:
        """The coroutine that carries a new run, and its client."""
        self.run, self.asked = new_id(), []
        steps: list[Step] = [Admit(), *map(Send, MESSAGES), Reach(asyncio.Event())]
        self.worker.script(self.run, *steps, optional=True)
        data, hop = run_request(self.run, session_id="5" * 32), RecordingHop()
        return self.broker.relay.carry(HeldRequest(pb.RunRequest.FromString(data), data), hop), hop

    def busy_for_a_moment(self) -> None:
        """No slot is free until what is driven now has suspended."""
        [worker] = self.broker.pool.workers()
        for _ in range(worker.slots):
            self.broker.pool.acquire(worker)
            asyncio.get_running_loop().call_soon(self.broker.dispatcher.release, worker)

    async def at_rest(self) -> None:
        """Wait until the broker has told whom it wanted to tell."""
        await self.broker.relay.idle()
        await self.broker.errands.close(10.0)
        if self.run in self.worker.runs:
            await self.worker.until(lambda: self.worker.runs[self.run].ended)
            self.worker.runs[self.run].played = True

    def nothing_is_left(self) -> None:
        route = self.broker.routes.get(self.run)
        assert route is None or not route.open
        assert all(worker.busy == 0 for worker in self.broker.pool.workers())
        assert not self.broker.relay._legs
        assert self.broker.dispatcher.queued == 0


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with connected() as (broker, client), TruthfulWorker() as worker:
        yield World(broker, client, worker, await worker.register(broker.address))


def hop_breaks(_: World) -> Callable[[asyncio.Task[Any]], object]:
    return asyncio.Task.cancel


def cancel_comes(world: World) -> Callable[[asyncio.Task[Any]], object]:
    def act(_: asyncio.Task[Any]) -> None:
        # At the broker's door already, twice: what it decides at once it decides here.
        world.asked += [asyncio.create_task(world.client.cancel(world.run)) for _ in range(2)]

    return act


def both_come(world: World) -> Callable[[asyncio.Task[Any]], object]:
    def act(task: asyncio.Task[Any]) -> None:
        cancel_comes(world)(task)
        task.cancel()

    return act


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("queued", [False, True], ids=["at once", "queued"])
@pytest.mark.parametrize("disturbance", [hop_breaks, cancel_comes, both_come])
async def test_a_run_that_is_disturbed_at_each_suspension(
    disturbance: Callable[[World], Callable[[asyncio.Task[Any]], object]],
    queued: bool,
    moment: Moment,
    by_lane: bool,
) -> None:
    reached = 0
    async with world() as now:
        for point in Suspensions(disturbance(now), moment):
            carried, hop = now.fresh()
            task = point.drive(carried)
            if queued:
                now.busy_for_a_moment()
            outcome = await outcome_of(task)
            answers = {await asked for asked in now.asked}
            await now.at_rest()
            now.nothing_is_left()
            reached += point.reached
            route = now.broker.routes.get(now.run)
            if outcome is None:
                assert b"".join(hop.taken) == b"".join(MESSAGES), point
                if not answers:  # else it was taken back since, and its outcome is all that stays
                    assert route is not None
                    assert route.state is RouteState.REPLIED
                assert now.run in now.worker.replied
                assert answers <= {"DISCARDED"}, f"{point}: told OK and {answers}"
            else:
                assert isinstance(outcome, Refusal | PassedOn | asyncio.CancelledError), (point, outcome)
                settled = now.run in now.worker.outcomes
                assert settled or now.run not in now.worker.runs, f"{point}: the worker was not told"
            # REMEMBERED is no outcome yet: the worker had still to get the run.
            outcomes = answers - {"REMEMBERED"}
            assert len(outcomes) <= 1, f"{point}: one outcome for all, not {answers}"
            assert outcomes <= {"ABORTED"} or outcomes == answers, f"{point}: {answers}"
            if outcomes:
                assert {await now.client.cancel(now.run)} == outcomes, point
    assert reached >= (4 if by_lane else 8) + queued  # what waits in a stream is taken at once


@pytest.mark.parametrize("moment", Moment)
async def test_a_worker_that_is_lost_at_each_suspension(moment: Moment) -> None:
    async with connected() as (broker, client):

        def lose(_: asyncio.Task[Any]) -> None:
            [link] = broker._links.values()
            # As the registry does it when a lease is over.
            broker._registry._pool.remove(link.worker.instance, link.worker.lease)
            broker._registry._drop(link.worker, "the test says so")

        for point in Suspensions(lose, moment):
            async with TruthfulWorker() as worker:
                now = World(broker, client, worker, await worker.register(broker.address))
                carried, hop = now.fresh()
                outcome = await outcome_of(point.drive(carried))
                await now.at_rest()
                now.nothing_is_left()
                if outcome is None:
                    assert b"".join(hop.taken) == b"".join(MESSAGES)
                    expected = "TOO_LATE WORKER_LOST" if point.reached else "DISCARDED"
                else:
                    assert isinstance(outcome, Refusal), (point, outcome)
                    assert outcome.reason == "WORKER_LOST", point
                    expected = "ABORTED WORKER_LOST"
                assert await client.cancel(now.run) == expected, point
