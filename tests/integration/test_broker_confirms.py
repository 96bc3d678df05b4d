"""Confirmations at a broker: each finds the worker that replied, and where that is silent none is made up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
from envtrio.v1 import env_service_pb2 as pb
from envtrio.v1 import registry_service_pb2

from env_broker import link
from env_broker.link import LAST_WORDS_SECONDS, WorkerLink
from env_broker.routes import RETENTION_MARGIN_SECONDS
from env_worker.registration import GOODBYE_SECONDS
from tests.helpers.clock import FakeClock
from tests.helpers.raw_client import connected, message
from tests.helpers.scripted_worker import Abort, ScriptedWorker, Send, Wait, WaitCancel
from tests.helpers.stub_client import new_id

if TYPE_CHECKING:
    import pytest

    from tests.helpers.raw_client import RawClient

GRACE = 3.0
DISCARDED = pb.CONFIRM_OUTCOME_DISCARDED
CANCELLED = Abort(grpc.StatusCode.CANCELLED, "CANCEL_REQUESTED")
REFUSED = ("INVALID_ARGUMENT", "INVALID_REQUEST")


async def replied(client: RawClient, worker: ScriptedWorker, session_id: str = "", run: str = "") -> str:
    """A run whose reply has passed."""
    run = run or new_id()
    worker.script(run, Send(message("reply")))
    assert (await client.run(run, session_id=session_id))[1] == "OK"
    return run


async def test_a_confirmation_goes_to_the_worker_that_replied() -> None:
    async with connected() as (broker, client), ScriptedWorker() as one, ScriptedWorker() as two:
        lease = await one.register(broker.address)
        first = await replied(client, one)
        await two.register(broker.address)
        await lease.beat(draining=True)
        others = [await replied(client, two) for _ in range(3)]
        session = await client.session().open(new_id())
        assert session.opened is not None
        assert session.opened.instance == broker.instance
        assert list(session.opened.capabilities) == ["sessions", "session-runs"]
        assert (session.opened.session_grace_seconds, session.opened.late_cancel_seconds) == (GRACE, 60.0)
        assert await session.confirm(first, *others) == ["CONFIRMED"] * 4
        assert (one.sessions.frames, two.sessions.frames) == ([[first]], [others])
        assert await session.confirm(first, *others) == ["CONFIRMED"] * 4
        assert len(one.sessions.confirms + two.sessions.confirms) == 4, "a decided run is not asked about"
        more = await replied(client, two)
        assert await session.confirm(more) == ["CONFIRMED"]
        [own], [also_own] = one.sessions.opens, two.sessions.opens
        assert len({own.session_id, also_own.session_id, broker.instance, ""}) == 4, "one each, and secret"
        assert own.epoch != also_own.epoch
        assert [await client.cancel(run) for run in (first, more)] == ["TOO_LATE"] * 2
        assert one.cancels == two.cancels == []
        assert await session.goodbye() == ("OK", "")


async def test_answers_are_heard_in_all_frames_of_a_workers_message_and_passed_on_without_more() -> None:
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.sessions.apart = True
        runs = [await replied(client, worker) for _ in range(3)]
        session = await client.session().open(new_id())
        await session.send(confirm=pb.Confirm(request_ids=runs))
        answered: list[tuple[str, pb.ConfirmOutcome.ValueType]] = []
        while len(answered) < len(runs):
            told = await session.read()
            assert told is not None
            assert not told.more, "a client that opens no runs may be older than that"
            answered += [(answer.request_id, answer.outcome) for answer in told.confirm_answers.answers]
        assert answered == [(run, pb.CONFIRM_OUTCOME_CONFIRMED) for run in runs]
        assert worker.sessions.frames == [runs]


async def test_a_run_that_was_cancelled_first_is_discarded() -> None:
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        session = await client.session().open(new_id())
        known, met = await replied(client, worker), await replied(client, worker)
        worker.cancel_lines[known] = [pb.CANCEL_OUTCOME_DISCARDED]
        assert await client.cancel(known) == "DISCARDED"
        assert await session.confirm(known) == ["DISCARDED"]
        assert worker.sessions.confirms == []
        worker.sessions.lines[met] = [DISCARDED]  # as where the cancel of another client was there first
        assert await session.confirm(met) == ["DISCARDED"]
        assert await client.cancel(met) == "DISCARDED"
        assert len(worker.cancels) == 1


async def test_what_has_not_replied_is_unknown() -> None:
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Send(message("a")), WaitCancel(), CANCELLED)
        call = client.start(run)
        assert await call.read() == message("a")
        session, foreign = await client.session().open(new_id()), new_id()
        worker.sessions.lines[foreign] = [pb.CONFIRM_OUTCOME_UNKNOWN]
        assert await session.confirm(run, foreign) == ["UNKNOWN"] * 2
        assert worker.sessions.confirms == [foreign]
        assert await client.cancel(run) == "ABORTED"
        await client.read_all(call)
        assert await session.confirm(run) == ["DISCARDED"]


async def test_two_sessions_that_confirm_the_same_run_are_both_answered() -> None:
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        run = await replied(client, worker)
        worker.sessions.reading.clear()
        one, two = await client.session().open(new_id()), await client.session().open(new_id())
        asked = [asyncio.create_task(session.confirm(run)) for session in (one, two)]
        await worker.until(lambda: worker.sessions.opens)
        worker.sessions.reading.set()
        assert await asyncio.gather(*asked) == [["CONFIRMED"]] * 2


async def test_a_stream_that_ends_leaves_no_question_behind() -> None:
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        run = await replied(client, worker)
        worker.sessions.lines[run] = [None]
        session, mine = client.session(), new_id()
        await session.open(mine)
        await session.send(confirm=pb.Confirm(request_ids=[run]))
        await worker.until(lambda: worker.sessions.confirms)
        again = await client.session().open(mine, 2)
        assert await session.status() == ("ABORTED", "SESSION_SUPERSEDED")
        assert len(broker._confirmer) == 0
        assert await again.confirm(run) == ["CONFIRMED"], "it is asked again"
        assert worker.sessions.confirms == [run, run]


async def test_a_broken_stream_to_the_worker_is_opened_again_and_asked_again() -> None:
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        run = await replied(client, worker)
        session = await client.session().open(new_id())
        worker.sessions.refusals = [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.CANCELLED]
        worker.sessions.lines[run] = [None]
        asked = asyncio.create_task(session.confirm(run))
        await worker.until(lambda: worker.sessions.confirms)
        worker.sessions.break_off()
        assert await asked == ["CONFIRMED"]
        assert worker.sessions.confirms == [run, run]
        epochs = [opened.epoch for opened in worker.sessions.opens]
        assert epochs == sorted(set(epochs))
        assert len(epochs) == 4


async def test_a_worker_that_is_lost_answers_nothing_and_the_client_hears_that() -> None:
    async with connected() as (broker, client), ScriptedWorker() as worker:
        lease = await worker.register(broker.address)
        asked, later = await replied(client, worker), await replied(client, worker)
        session = await client.session().open(new_id())
        worker.sessions.lines[asked] = [None]
        answer = asyncio.create_task(session.confirm(asked))
        await worker.until(lambda: worker.sessions.confirms)
        await lease.close()
        assert await answer == ["WORKER_LOST"]
        assert await session.confirm(later) == ["WORKER_LOST"]
        await worker.register(broker.address)  # it was only cut off
        assert await session.confirm(asked, later) == ["CONFIRMED"] * 2
        first, second = worker.sessions.opens
        assert first.session_id == second.session_id
        assert first.epoch < second.epoch


class Goodbyes:
    """Tells when a broker has heard the goodbye of a worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hear_out, self._came = WorkerLink.heard_out, asyncio.Event()

        async def noted(link: WorkerLink) -> None:
            self._came.set()
            await hear_out(link)

        monkeypatch.setattr(WorkerLink, "heard_out", noted)

    async def heard(self) -> None:
        """Return some turns of the loop after one, in which the worker might be given up."""
        await asyncio.wait_for(self._came.wait(), 10)
        for _ in range(100):
            await asyncio.sleep(0)


async def test_what_a_worker_answers_counts_also_where_its_goodbye_is_heard_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "LAST_WORDS_SECONDS", 20.0)
    goodbyes = Goodbyes(monkeypatch)
    async with connected() as (broker, client), ScriptedWorker() as worker:
        lease = await worker.register(broker.address)
        run = await replied(client, worker)
        session = await client.session().open(new_id())
        worker.sessions.reading.clear()
        answer = asyncio.create_task(session.confirm(run))
        await worker.until(lambda: worker.sessions.opens)
        await lease.beat(draining=True)
        leaving = asyncio.create_task(lease.leave())
        await goodbyes.heard()
        worker.sessions.reading.set()
        assert await answer == ["CONFIRMED"]
        await leaving
        assert worker.instance not in broker._links


async def test_what_a_worker_says_of_a_run_counts_also_where_its_goodbye_is_heard_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "LAST_WORDS_SECONDS", 20.0)
    goodbyes, run, go = Goodbyes(monkeypatch), new_id(), asyncio.Event()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        lease = await worker.register(broker.address)
        worker.script(run, Wait(go), Abort(grpc.StatusCode.UNAVAILABLE, "DRAINING", "I drain"))
        outcome = asyncio.create_task(client.run(run))
        await worker.until(lambda: run in worker.runs)
        await lease.beat(draining=True)
        leaving = asyncio.create_task(lease.leave())
        await goodbyes.heard()
        go.set()
        assert (await outcome)[1:3] == ("UNAVAILABLE", "DRAINING")
        await leaving


async def test_a_worker_that_owes_no_answer_is_not_waited_for() -> None:
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        run = await replied(client, worker)
        session = await client.session().open(new_id())
        assert await session.confirm(run) == ["CONFIRMED"]
        [leaving] = broker._links.values()
        assert leaving.legs, "its health is watched, and its session is open"
        assert not any(leg.waits for leg in leaving.legs)


async def test_a_worker_that_said_goodbye_is_waited_for_no_longer_than_it_waits_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert LAST_WORDS_SECONDS < GOODBYE_SECONDS
    monkeypatch.setattr(link, "LAST_WORDS_SECONDS", 0.02)
    async with connected() as (broker, client), ScriptedWorker() as worker:
        lease = await worker.register(broker.address)
        run = await replied(client, worker)
        session = await client.session().open(new_id())
        worker.sessions.lines[run] = [None]
        answer = asyncio.create_task(session.confirm(run))
        await worker.until(lambda: worker.sessions.confirms)
        await lease.beat(draining=True)
        await lease.leave()
        assert await answer == ["WORKER_LOST"]


async def test_a_silent_worker_gets_no_answer_made_up_and_holds_nobody_up() -> None:
    clock = FakeClock()
    async with (
        connected(clock, lease_seconds=3600) as (broker, client),
        ScriptedWorker() as silent,
        ScriptedWorker() as other,
    ):
        lease = await silent.register(broker.address)
        stuck = await replied(client, silent)
        silent.sessions.lines[stuck] = [None]
        await lease.beat(draining=True)
        await other.register(broker.address)
        run = await replied(client, other)
        session = await client.session().open(new_id())
        await session.send(confirm=pb.Confirm(request_ids=[stuck]))
        await silent.until(lambda: silent.sessions.confirms)
        assert await session.confirm(run) == ["CONFIRMED"]
        await session.send(goodbye=pb.SessionGoodbye())
        assert await client.session().open(new_id())
        await clock.sleepers(1)
        clock.advance(60.0 + RETENTION_MARGIN_SECONDS)
        assert await session.status() == ("OK", ""), "a goodbye waits no longer than the window"


async def test_a_restarted_broker_learns_of_a_run_when_its_worker_registers() -> None:
    run, session_id = new_id(), new_id()
    async with ScriptedWorker() as worker:
        async with connected() as (broker, client):
            await worker.register(broker.address)
            await replied(client, worker, session_id, run)
        async with connected() as (broker, client):
            session = await client.session().open(session_id, 2)
            assert await session.confirm(run) == ["UNKNOWN"]
            held = registry_service_pb2.HeldRun(
                request_id=run, session_id=session_id, state=registry_service_pb2.HELD_RUN_STATE_REPLIED
            )
            await worker.register(broker.address, held_runs=[held])
            assert await session.confirm(run) == ["CONFIRMED"]
            assert await client.cancel(run) == "TOO_LATE"


async def test_a_restarted_broker_asks_all_workers_about_what_none_has_reported() -> None:
    kept, taken, stuck, foreign = (new_id() for _ in range(4))
    unknown, remembered = pb.CONFIRM_OUTCOME_UNKNOWN, pb.CANCEL_OUTCOME_REMEMBERED
    async with connected() as (broker, client), ScriptedWorker() as one, ScriptedWorker() as two:
        leases = [await worker.register(broker.address) for worker in (one, two)]
        one.sessions.lines = {kept: [unknown], taken: [unknown] * 2, stuck: [None], foreign: [unknown]}
        two.sessions.lines = {taken: [DISCARDED] * 2, stuck: [unknown], foreign: [unknown]}
        session = await client.session().open(new_id())
        assert await session.confirm(kept, taken, foreign) == ["CONFIRMED", "DISCARDED", "UNKNOWN"]
        assert await session.confirm(taken) == ["DISCARDED"]
        waits = asyncio.create_task(session.confirm(stuck))
        await two.until(lambda: stuck in two.sessions.confirms)
        await one.until(lambda: stuck in one.sessions.confirms)
        assert not waits.done(), "UNKNOWN is what all of them say"
        await leases[0].close()
        assert await waits == ["UNKNOWN"]
        await one.register(broker.address)
        one.cancel_lines = {run: [remembered] for run in (kept, taken, foreign)}
        two.cancel_lines = {
            kept: [pb.CANCEL_OUTCOME_TOO_LATE],
            taken: [pb.CANCEL_OUTCOME_DISCARDED],
            foreign: [Abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "TABLE_FULL")],
        }
        told = [await client.cancel(run) for run in (kept, taken, foreign)]
        assert told == ["TOO_LATE", "DISCARDED", "REMEMBERED"]
        assert len(broker._confirmer) == 0
