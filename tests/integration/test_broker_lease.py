"""Workers that are lost, come back, or register again."""

from __future__ import annotations

import asyncio

from tests.helpers.clock import FakeClock
from tests.helpers.raw_client import connected, message
from tests.helpers.scripted_worker import Hang, ScriptedWorker, Send, Wait
from tests.helpers.stub_client import new_id


async def test_a_worker_that_dies_in_mid_stream_fails_its_runs_and_no_others() -> None:
    lost, other, go = new_id(), new_id(), asyncio.Event()
    async with connected() as (broker, client), ScriptedWorker("b") as healthy:
        async with ScriptedWorker("a") as worker:
            await worker.register(broker.address)
            await healthy.register(broker.address)
            worker.script(lost, Send(message("a")), Hang())
            healthy.script(other, Send(message("b")), Wait(go), Send(message("c")))
            call, undisturbed = client.start(lost, environment="a"), client.start(other, environment="b")
            assert await call.read() == message("a")
            assert await undisturbed.read() == message("b")
            await worker.crash()
            assert (await client.read_all(call))[1:] == ("UNAVAILABLE", "WORKER_LOST")
            assert worker.instance[:8] in await call.details()
        go.set()
        assert await client.read_all(undisturbed) == ([message("c")], "OK", "")


async def test_a_lease_that_expires_fails_its_runs_and_is_told_at_its_return() -> None:
    run, replied, clock = new_id(), new_id(), FakeClock()
    async with connected(clock) as (broker, client), ScriptedWorker() as worker:
        lease = await worker.register(broker.address)
        worker.script(run, Send(message("a")), Hang())
        worker.script(replied, Send(message("b")))
        call = client.start(run)
        assert await call.read() == message("a")
        assert (await client.run(replied))[1] == "OK"
        clock.advance(4.9)
        await lease.beat()
        clock.advance(4.9)
        await lease.beat()  # each renews it
        clock.advance(5.0)
        assert await lease.status() == ("ABORTED", "LEASE_EXPIRED")
        assert (await client.read_all(call))[1:] == ("UNAVAILABLE", "WORKER_LOST")
        assert await client.cancel(run) == "ABORTED WORKER_LOST"
        assert await client.cancel(replied) == "TOO_LATE WORKER_LOST"
        back = await worker.register(broker.address)
        assert list(back.registered.given_up) == [run]
        again = await worker.register(broker.address)
        assert list(again.registered.given_up) == [run]  # until it is acknowledged
        await again.acknowledge([run])
        assert list((await worker.register(broker.address)).registered.given_up) == []


async def test_a_broker_that_stood_still_hears_its_workers_first() -> None:
    clock = FakeClock()
    async with connected(clock) as (broker, client), ScriptedWorker() as worker:
        lease = await worker.register(broker.address)
        clock.advance(60)
        await lease.beat()
        await clock.sleepers(2)  # housekeeping, and the grace
        clock.advance(1)
        await lease.beat()
        assert len(broker.pool) == 1
        clock.advance(60)
        await client.cancel(new_id())  # a round trip, in which the lease's end is seen
        await clock.sleepers(2)
        assert len(broker.pool) == 1
        clock.advance(1)
        assert await lease.status() == ("ABORTED", "LEASE_EXPIRED")


async def test_a_worker_that_registers_again_keeps_its_runs() -> None:
    run, go = new_id(), asyncio.Event()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        first = await worker.register(broker.address)
        worker.script(run, Send(message("a")), Wait(go), Send(message("b")))
        call = client.start(run)
        assert await call.read() == message("a")
        await worker.register(broker.address)
        assert await first.status() == ("ABORTED", "LEASE_EXPIRED")
        go.set()
        assert await client.read_all(call) == ([message("b")], "OK", "")
