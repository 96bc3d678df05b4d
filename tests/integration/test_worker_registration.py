"""A worker's place in a pool, against a scripted RegistryService."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from envtrio.v1 import registry_service_pb2 as pb

from env_worker import registration
from env_worker.config import WorkerSettings
from env_worker.exit_codes import EXIT_REFUSED
from env_worker.server import WorkerServer
from tests.helpers.clock import FakeClock
from tests.helpers.history import DiscardBegan, History
from tests.helpers.runner_harness import HaltingHook, within
from tests.helpers.scripted_registry import Lease, ScriptedRegistry, registry
from tests.helpers.stub_client import StubClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

SMALL = {"turns": 1, "tokens_per_turn": 20}


@asynccontextmanager
async def brokered(
    *, clock: Callable[[], float] = time.monotonic, local_slot: str = "", **settings: Any
) -> AsyncIterator[tuple[ScriptedRegistry, WorkerServer, HaltingHook, StubClient]]:
    history = History()
    hook = HaltingHook(history)
    async with registry() as (broker, address):
        worker = WorkerServer(
            WorkerSettings(environments=("synthetic",), broker=address, **settings),
            hook=hook,
            local_slot=local_slot,
            clock=clock,
        )
        await worker.start()
        try:
            async with StubClient(worker.address, history) as client:
                yield broker, worker, hook, client
        finally:
            broker.end()
            await asyncio.wait_for(worker.stop(hurry=True), 20)


async def test_hello_heartbeats_and_a_goodbye() -> None:
    async with brokered(local_slot="3:x", max_concurrent=5, late_cancel_seconds=7, advertise="worker:1") as (
        broker,
        worker,
        *_,
    ):
        lease = await broker.lease()
        hello = await lease.register()
        assert (hello.protocol_generation, hello.instance, hello.address) == (1, worker.instance, "worker:1")
        assert (hello.max_concurrent_runs, hello.late_cancel_seconds, hello.local_slot) == (5, 7, "3:x")
        assert [environment.name for environment in hello.environments] == ["synthetic"]
        beats = [(await lease.read()).heartbeat for _ in range(3)]
        assert [beat.seq for beat in beats] == [1, 2, 3]
        assert not beats[0].draining
        stopping = asyncio.create_task(worker.stop(hurry=True))
        assert await lease.at_end(), "the worker ends its side"
        lease.over.set()
        await asyncio.wait_for(stopping, 20)


async def test_without_an_address_of_its_own_it_advertises_the_bound_one() -> None:
    async with brokered() as (broker, worker, *_):
        assert (await (await broker.lease()).register()).address == worker.address


async def test_it_comes_back_with_what_it_holds_and_discards_what_was_given_up() -> None:
    async with brokered(max_concurrent=4) as (broker, worker, hook, client):
        lease = await broker.lease()
        first = await lease.register()
        kept = [await client.run(SMALL) for _ in range(2)]
        live = client.start({"turns": 1, "turn_seconds": 600})
        await live.next()
        lease.over.set()
        lease = await broker.lease()
        hello = await lease.register(given_up=[kept[0].run, live.run])
        assert hello.instance == first.instance
        assert {(run.request_id, run.state) for run in hello.held_runs} == {
            (kept[0].run, pb.HELD_RUN_STATE_REPLIED),
            (kept[1].run, pb.HELD_RUN_STATE_REPLIED),
            (live.run, pb.HELD_RUN_STATE_RUNNING),
        }
        frame = await lease.read()
        assert list(frame.given_up_ack.request_ids) == [kept[0].run, live.run], "before any heartbeat"
        assert (await live.finish()).reason == "CANCEL_REQUESTED"
        await within(worker.runner.wait_hooks())
        assert [episode.request_id for episode in hook.discarded] == [kept[0].run]
        assert not client.history.of(kept[1].run, DiscardBegan)


async def acknowledge(lease: Lease) -> None:
    while True:
        seq = (await lease.read()).heartbeat.seq
        await lease.send(heartbeat_ack=pb.HeartbeatAck(seq=seq))


async def test_a_window_closes_when_a_heartbeat_after_its_end_is_acknowledged() -> None:
    clock = FakeClock()
    async with brokered(clock=clock, late_cancel_seconds=60) as (broker, worker, _, client):
        lease = await broker.lease()
        await lease.register()
        outcome = await client.run(SMALL)
        clock.advance(60)
        worker.runner.expire()
        assert worker.runner.table.open_windows == 1
        # Any number of them may have left before the window's end; those close nothing.
        acknowledging = asyncio.create_task(acknowledge(lease))
        await within(worker.runner.wait_windows())
        acknowledging.cancel()
        assert await client.cancel(outcome.run) == "TOO_LATE"


async def test_a_drain_order_is_as_sigterm() -> None:
    async with brokered() as (broker, worker, *_):
        lease = await broker.lease()
        await lease.register()
        await lease.send(drain=pb.DrainOrder(cause="the pool shrinks"))
        await asyncio.wait_for(worker.stop_wanted.wait(), 10)
        worker.runner.drain()
        detail = (await lease.beats_until(draining=True)).detail
        assert detail == "drains: order of the broker: the pool shrinks"


async def test_the_worker_says_itself_that_its_broker_cannot_reach_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "env_worker")
    async with brokered(advertise="worker:1") as (broker, worker, *_):
        lease = await broker.lease()
        await lease.register()
        for because in ("", "no such host", "no such host", "refused", "", ""):
            await lease.send(heartbeat_ack=pb.HeartbeatAck(seq=1, unreachable_because=because))
        await lease.send(drain=pb.DrainOrder())
        await asyncio.wait_for(worker.stop_wanted.wait(), 10)
    assert "registered advertise=worker:1" in caplog.text
    said = [(record.levelname, record.getMessage()) for record in caplog.records if "reach" in record.message]
    assert [level for level, _ in said] == ["WARNING", "WARNING", "INFO"]
    assert "cannot reach this worker at worker:1 and gives it no runs: no such host" in said[0][1]
    assert "refused" in said[1][1]
    assert "reaches this worker at worker:1 now" in said[2][1]


async def test_a_stream_that_ends_before_the_place_was_given_is_tried_again() -> None:
    async with brokered() as (broker, *_):
        (await broker.lease()).over.set()
        await (await broker.lease()).register()


async def test_a_frame_of_a_later_version_is_ignored() -> None:
    async with brokered() as (broker, *_):
        lease = await broker.lease()
        await lease.register()
        await lease.send()
        seq = (await lease.read()).heartbeat.seq
        assert (await lease.read()).heartbeat.seq == seq + 1


async def test_a_silent_broker_is_left_after_the_lease() -> None:
    async with brokered() as (broker, *_):
        await (await broker.lease()).register(lease_seconds=0.05)
        await (await broker.lease()).register()


@pytest.mark.parametrize("code", sorted(registration._HOPELESS, key=str))
async def test_a_refusal_that_would_repeat_itself_ends_the_worker(code: grpc.StatusCode) -> None:
    async with brokered() as (broker, worker, *_):

        async def refuse() -> None:
            # Each time: of a hello that meets a stream that has ended gRPC makes a status of its own.
            while True:
                lease = await broker.lease()
                lease.refusal = (code, "not you")
                lease.over.set()

        refusing = asyncio.create_task(refuse())
        await asyncio.wait_for(worker.stop_wanted.wait(), 10)
        refusing.cancel()
        assert worker.exit_code == EXIT_REFUSED


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED])
async def test_any_other_end_is_tried_again(code: grpc.StatusCode) -> None:
    async with brokered() as (broker, worker, *_):
        lease = await broker.lease()
        lease.refusal = (code, "later")
        lease.over.set()
        await (await broker.lease()).register()
        assert not worker.stop_wanted.is_set()


async def test_a_broker_that_is_not_there_yet_stops_nothing() -> None:
    worker = WorkerServer(WorkerSettings(environments=("synthetic",), broker="127.0.0.1:1"))
    await worker.start()
    async with StubClient(worker.address, History()) as client:
        assert (await client.run(SMALL)).code == "OK"
    await asyncio.wait_for(worker.stop(hurry=True), 20)


async def test_a_fault_of_the_registration_itself_ends_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: list[str]) -> None:
        raise AssertionError("a bug")

    async with brokered() as (broker, worker, *_):
        worker.runner.give_up = fail  # type: ignore[method-assign]
        await (await broker.lease()).register(given_up=["0" * 32])
        await asyncio.wait_for(worker.stop_wanted.wait(), 10)
        assert worker.exit_code == EXIT_REFUSED
        assert "registration failed" in caplog.text


async def test_heartbeats_say_what_the_hook_holds() -> None:
    async with brokered() as (broker, _, hook, client):
        lease = await broker.lease()
        await lease.register()
        hook.held_arrays, hook.held_array_bytes = 3, 2**40  # type: ignore[attr-defined]
        beat = await lease.beats_until(held_arrays=3)
        assert beat.held_array_bytes == 2**40
        assert (await client.run(SMALL)).code == "OK"
        hook.held_arrays = 0  # type: ignore[attr-defined]
        await lease.beats_until(held_arrays=0, running=0, open_windows=1)


async def test_a_hook_that_cannot_say_what_it_holds_ends_no_lease(caplog: pytest.LogCaptureFixture) -> None:
    async with brokered() as (broker, _, hook, client):
        lease = await broker.lease()
        await lease.register()
        hook.held_arrays = "many"  # type: ignore[attr-defined]
        for _ in range(5):
            await lease.beats_until(held_arrays=0)
        assert (await client.run(SMALL)).code == "OK"
        await lease.beats_until(held_arrays=1)
        await lease.beats_until(held_arrays=1)
    assert caplog.text.count("whole numbers from 0") == 1


class Clocked:
    """Leases that end with these reasons, a second apart."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.registration: Any = registration.Registration(
            "broker:1", runner=None, instance="0" * 32, address="worker:1", environments=(),
            local_slot="", drain=pytest.fail, held=None, detail=str, clock=self.clock,  # type: ignore[arg-type]
        )  # fmt: skip

    def end(self, *reasons: str) -> None:
        for reason in reasons:
            self.clock.advance(1)
            self.registration._tell(reason)


async def test_the_log_says_why_there_is_no_lease_when_that_changes_and_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    subject = Clocked()
    subject.end(*["refused"] * 30, *["no such host"] * 5, "refused")
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "refused",
        "no such host",
        "refused",
    ]
    subject.end(*["refused"] * 120)
    assert len(caplog.records) == 5


async def test_leases_that_end_at_once_are_asked_for_less_and_less(caplog: pytest.LogCaptureFixture) -> None:
    async with brokered() as (broker, worker, *_):
        subject = worker._registration
        assert subject is not None
        backoffs = []
        for _ in range(4):
            lease = await broker.lease()
            await lease.register()
            await lease.beats_until(seq=1)
            backoffs.append(subject._backoff)
            lease.over.set()
        assert backoffs == [0.1, 0.2, 0.4, 0.8]
        lease = await broker.lease()
        assert caplog.text.count("the lease is over") == 1
        await lease.register()
        await lease.beats_until(seq=registration.HEARTBEATS_HELD + 1)
        assert subject._backoff == 0.1
        lease.over.set()
        await (await broker.lease()).register()
        assert caplog.text.count("the lease is over") == 2


async def test_a_network_that_swallows_packets_holds_up_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """What accepts connections and says nothing: as seen from here, a broker that is stopped."""
    monkeypatch.setattr(registration, "CONNECT_SECONDS", 0.05)
    connections: asyncio.Queue[None] = asyncio.Queue()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.put_nowait(None)
        await reader.read()
        while await reader.read(2**16):
            pass
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    worker = WorkerServer(WorkerSettings(environments=("synthetic",), broker=f"127.0.0.1:{port}"))
    await worker.start()
    for _ in range(3):
        await asyncio.wait_for(connections.get(), 10)
    await asyncio.wait_for(worker.stop(hurry=True), 20)
    server.close()


async def test_a_broker_that_takes_the_hello_and_answers_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration, "ANSWER_SECONDS", 0.05)
    async with brokered() as (broker, *_):
        for _ in range(2):
            assert (await (await broker.lease()).read()).HasField("hello")
        assert registration.CONNECT_SECONDS + registration.LAST_BACKOFF_SECONDS <= 5
