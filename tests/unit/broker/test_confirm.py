"""Confirmations within the broker: who is asked once, who is told, and what is bounded."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from envtrio.v1 import env_service_pb2 as pb

from env_broker.client_session import ClientSessions
from env_broker.confirm import Confirmer
from env_broker.link import WorkerLink
from env_broker.pool import Pool
from env_broker.route import CancelOutcome, ConfirmOutcome
from env_broker.routes import RouteTable
from env_broker.sessions import SessionTable
from tests.helpers.clock import FakeClock
from tests.helpers.scripted_worker import ScriptedWorker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from env_broker.cancel import Canceller

A, B, C = (letter * 32 for letter in "abc")


class Told:
    """Who confirms, and what it was told."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[str, str]] = []
        self._news = asyncio.Event()

    def answered(self, request_id: str, outcome: ConfirmOutcome) -> None:
        self.outcomes.append((request_id, outcome.name))
        self._news.set()

    def unanswered(self, request_id: str) -> None:
        self.outcomes.append((request_id, "nothing"))
        self._news.set()

    async def of(self, *request_ids: str) -> list[str]:
        """The outcomes of these, once there are as many."""
        async with asyncio.timeout(10):
            while len(self.outcomes) < len(request_ids):
                self._news.clear()
                await self._news.wait()
        found = dict(self.outcomes)
        return [found[request_id] for request_id in request_ids]


class World:
    """A confirmer with one worker that has replied to A, B and C."""

    def __init__(self, worker: ScriptedWorker, clock: FakeClock) -> None:
        pool = Pool(lease_seconds=60)
        pool.add(worker.instance, "lease", worker.address, ["scripted"], 4, 60.0, clock.now())
        place = pool.get(worker.instance)
        assert place is not None
        self.worker = worker
        self.link = WorkerLink(place)
        self.links = {worker.instance: self.link}
        self.routes = RouteTable()
        self.confirmer = Confirmer(routes=self.routes, links=self.links, clock=clock)
        for name in (A, B, C):
            self.routes.queue(name, "", clock.now())
            self.routes.place(name, worker.instance)
            self.routes.replied(name, clock.now(), 60.0)


@asynccontextmanager
async def world(clock: FakeClock | None = None) -> AsyncIterator[World]:
    async with ScriptedWorker() as worker:
        world = World(worker, clock or FakeClock())
        yield world
        await world.confirmer.close(1.0)
        await world.link.close()


async def test_one_question_for_all_who_confirm_a_run() -> None:
    async with world() as now:
        now.worker.sessions.reading.clear()
        one, two = Told(), Told()
        for listener in (one, two, one):
            now.confirmer.confirm(A, listener)
        now.confirmer.confirm(B, two)
        await now.worker.until(lambda: now.worker.sessions.opens)
        now.worker.sessions.reading.set()
        assert await two.of(A, B) == ["CONFIRMED"] * 2
        assert one.outcomes == [(A, "CONFIRMED")]
        assert now.worker.sessions.frames == [[A, B]], "what comes together goes together"
        assert len(now.confirmer) == 0
    assert now.worker.sessions.goodbyes == [1]


async def test_what_nobody_waits_for_any_more_is_not_sent() -> None:
    async with world() as now:
        one, two = Told(), Told()
        now.confirmer.confirm(A, one)
        now.confirmer.confirm(A, two)
        now.confirmer.confirm(B, one)
        now.confirmer.withdraw(one, [A, B, C])
        now.confirmer.withdraw(one, [A])
        assert await two.of(A) == ["CONFIRMED"]
        assert now.worker.sessions.confirms == [A]
        assert one.outcomes == []


async def test_an_answer_that_nobody_waits_for_is_recorded_all_the_same() -> None:
    async with world() as now:
        now.worker.sessions.reading.clear()
        one, two = Told(), Told()
        now.confirmer.confirm(A, one)
        now.confirmer.confirm(C, two)
        now.worker.sessions.reading.set()
        await now.worker.until(lambda: now.worker.sessions.confirms)
        now.confirmer.withdraw(one, [A])
        assert await two.of(C) == ["CONFIRMED"]
        assert now.routes.cancel(A, 1000.0).outcome is CancelOutcome.TOO_LATE
        assert one.outcomes == []


async def test_a_worker_that_is_not_there_is_not_waited_for() -> None:
    async with world() as now:
        now.links.clear()
        one = Told()
        now.confirmer.confirm(A, one)
        assert one.outcomes == [(A, "UNKNOWN")]


async def test_answers_that_say_nothing_are_passed_over() -> None:
    async with world() as now:
        now.worker.sessions.lines[A] = [pb.CONFIRM_OUTCOME_WORKER_LOST]
        one = Told()
        now.confirmer.confirm(A, one)
        now.confirmer.confirm(B, one)
        assert await one.of(B) == ["CONFIRMED"]
        assert len(now.confirmer) == 1
        [session] = now.confirmer._sessions.values()
        now.confirmer._heard(session, "not an id", ConfirmOutcome.CONFIRMED)


async def test_what_is_never_answered_is_given_up_when_its_window_is_over() -> None:
    clock = FakeClock()
    async with world(clock) as now:
        now.worker.sessions.lines[A] = [None]
        one = Told()
        now.confirmer.confirm(A, one)
        await now.worker.until(lambda: now.worker.sessions.confirms)
        now.confirmer.expire(clock.now() + 69.9)
        assert one.outcomes == []
        now.confirmer.expire(clock.now() + 70.0)
        assert one.outcomes == [(A, "nothing")]
        assert len(now.confirmer) == 0


# The grace.


class Cancels:
    """In the canceller's place: which sessions were lost."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.news = asyncio.Event()

    def lose_sessions(self, session_ids: list[str]) -> None:
        self.lost += session_ids
        self.news.set()


@pytest.mark.parametrize("stalled", [False, True])
async def test_a_broker_that_stood_still_hears_first_who_has_come_back(stalled: bool) -> None:
    clock, cancels, table = FakeClock(), Cancels(), SessionTable(grace=3.0)
    canceller: Canceller = cancels  # type: ignore[assignment]
    routes = RouteTable()
    sessions = ClientSessions(
        table=table,
        pool=Pool(lease_seconds=60),
        routes=routes,
        confirmer=Confirmer(routes=routes, links={}, clock=clock),
        canceller=canceller,
        clock=clock,
        instance=A,
    )
    for name in (A, B):
        table.open(name, 1, clock.now())
        table.end(name, 1, clock.now())
    graces = asyncio.create_task(sessions.keep_graces())
    try:
        await clock.sleepers(1)
        clock.advance(60.0 if stalled else 3.0)
        if stalled:
            async with asyncio.timeout(10):
                while [at for at, _ in clock._sleepers.values()] != [clock.now() + 0.5]:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            table.open(A, 2, clock.now())
            clock.advance(0.5)
        await asyncio.wait_for(cancels.news.wait(), 10)
        assert cancels.lost == ([B] if stalled else [A, B])
    finally:
        graces.cancel()
        await asyncio.gather(graces, return_exceptions=True)
