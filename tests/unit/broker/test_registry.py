"""Registering: what is checked, what a lease is, what a return means."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from envtrio.v1 import env_service_pb2, registry_service_pb2

from env_broker.given_up import GivenUp
from env_broker.hello import check_environments, check_hello
from env_broker.pool import Load
from env_broker.status import Refusal
from tests.helpers.clock import FakeClock
from tests.helpers.lease import Lease
from tests.helpers.raw_client import connected, message
from tests.helpers.scripted_worker import Hang, ScriptedWorker, Send
from tests.helpers.stub_client import OPTIONS, new_id


def hello(**fields: Any) -> registry_service_pb2.WorkerHello:
    values = {
        "protocol_generation": 1,
        "instance": new_id(),
        "address": "127.0.0.1:7000",
        "max_concurrent_runs": 1,
        "late_cancel_seconds": 60.0,
        **fields,
    }
    return registry_service_pb2.WorkerHello(**values)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:65535", "worker-0.pool:7000"])
def test_a_right_hello(address: str) -> None:
    checked = check_hello(hello(address=address, late_cancel_seconds=0, local_slot="3"))
    assert (checked.address, checked.slots, checked.environments, checked.local_slot) == (address, 1, (), "3")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"instance": "A" * 32}, "instance"),
        ({"instance": ""}, "instance"),
        ({"address": "nowhere"}, "address"),
        ({"address": "host:0"}, "address"),
        ({"address": "host:65536"}, "address"),
        ({"address": "http://host:1"}, "address"),
        ({"address": ":1"}, "address"),
        ({"max_concurrent_runs": 0}, "max_concurrent_runs"),
        ({"max_concurrent_runs": 10**6}, "max_concurrent_runs"),
        ({"late_cancel_seconds": -1.0}, "late_cancel_seconds"),
        ({"late_cancel_seconds": float("nan")}, "late_cancel_seconds"),
        ({"late_cancel_seconds": float("inf")}, "late_cancel_seconds"),
        ({"held_runs": [registry_service_pb2.HeldRun(request_id="x", state=1)]}, "held_runs.request_id"),
        ({"held_runs": [registry_service_pb2.HeldRun(request_id="a" * 32)]}, "held_runs.state"),
        ({"environments": [env_service_pb2.EnvironmentDescription()]}, "environments.name"),
        ({"environments": [env_service_pb2.EnvironmentDescription(name="a")] * 2}, "environments.name"),
    ],
)
def test_a_wrong_hello_is_refused_naming_the_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(Refusal) as error:
        check_hello(hello(**fields))
    assert (error.value.reason, error.value.metadata["field"]) == ("INVALID_REQUEST", field)


def test_another_generation_is_refused_naming_both() -> None:
    with pytest.raises(Refusal) as error:
        check_hello(hello(protocol_generation=2))
    assert error.value.metadata == {"ours": "1", "theirs": "2"}


def test_too_many_environments() -> None:
    many = [env_service_pb2.EnvironmentDescription(name=str(number)) for number in range(4097)]
    with pytest.raises(Refusal, match="4097"):
        check_environments(many)


def test_given_up_runs_are_held_until_they_are_acknowledged() -> None:
    given_up = GivenUp(limit=2)
    given_up.add("a", ["1", "2"])
    given_up.add("a", ["2", "3"])
    given_up.add("none", [])
    assert given_up.of("a") == ["1", "2", "3"]
    given_up.acknowledge("a", ["1", "9"])
    given_up.acknowledge("stranger", ["1"])
    assert given_up.of("a") == ["2", "3"]
    given_up.add("b", ["4"])
    given_up.add("c", ["5"])
    assert given_up.of("a") == []  # the longest lost
    given_up.acknowledge("b", ["4"])
    assert given_up.of("b") == []


@pytest.mark.parametrize(
    "frame",
    [
        {"heartbeat": registry_service_pb2.WorkerHeartbeat(seq=1)},
        {"hello": registry_service_pb2.WorkerHello(protocol_generation=1)},
        {},
    ],
)
async def test_a_stream_begins_with_a_right_hello(frame: dict[str, Any]) -> None:
    async with connected() as (broker, _):
        lease = Lease(grpc.aio.insecure_channel(broker.address, options=OPTIONS))
        await lease.send(**frame)
        assert await lease.status() == ("INVALID_ARGUMENT", "INVALID_REQUEST")
        await lease.close()


async def test_a_stream_that_says_nothing_is_ended() -> None:
    clock = FakeClock()
    async with connected(clock, heartbeat_seconds=0.1, lease_seconds=0.3) as (broker, _):
        lease = Lease(grpc.aio.insecure_channel(broker.address, options=OPTIONS))
        ended = asyncio.create_task(lease.status())
        await clock.sleepers(2)  # housekeeping, and the wait for the hello
        clock.advance(0.3)
        assert await ended == ("INVALID_ARGUMENT", "INVALID_REQUEST")
        await lease.close()


async def test_a_second_hello_ends_the_lease() -> None:
    async with connected() as (broker, _), ScriptedWorker() as worker:
        lease = await worker.register(broker.address)
        await lease.send(hello=worker.hello())
        assert await lease.status() == ("INVALID_ARGUMENT", "INVALID_REQUEST")
        assert broker.pool.workers() == ()


async def test_a_wrong_heartbeat_ends_the_lease() -> None:
    async with connected() as (broker, _), ScriptedWorker() as worker:
        lease = await worker.register(broker.address)
        nameless = [env_service_pb2.EnvironmentDescription()]
        await lease.send(heartbeat=registry_service_pb2.WorkerHeartbeat(seq=1, environments=nameless))
        assert await lease.status() == ("INVALID_ARGUMENT", "INVALID_REQUEST")


async def test_registered_says_what_is_expected() -> None:
    async with connected(heartbeat_seconds=0.5, lease_seconds=3) as (broker, _), ScriptedWorker() as worker:
        registered = (await worker.register(broker.address)).registered
        assert (registered.heartbeat_seconds, registered.lease_seconds) == (0.5, 3.0)
        assert registered.broker_instance == broker.instance
        assert len(registered.lease) == 32
        assert list(registered.given_up) == []


async def test_a_worker_hears_that_it_cannot_be_reached_and_why() -> None:
    async with connected() as (broker, _), ScriptedWorker() as worker:
        lease = await worker.register(broker.address, address="127.0.0.1:1")
        heard = [""]
        while not heard[-1]:
            await lease.send(heartbeat=registry_service_pb2.WorkerHeartbeat(seq=len(heard)))
            heard.append((await lease.read()).heartbeat_ack.unreachable_because)
        assert heard[-1].startswith("UNAVAILABLE: ")
        assert worker.instance in {known.instance for known in broker.pool.workers()}


async def test_a_worker_that_says_goodbye_leaves_with_ok() -> None:
    async with connected() as (broker, _), ScriptedWorker() as worker:
        lease = await worker.register(broker.address)
        assert len(broker.pool) == 1
        await lease.leave()
        assert len(broker.pool) == 0


async def test_a_new_process_at_an_old_address_takes_the_place() -> None:
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        old = await worker.register(broker.address)
        worker.script(run, Send(message("a")), Hang())
        call = client.start(run)
        assert await call.read() == message("a")
        await worker.register(broker.address, instance=new_id())
        assert await old.status() == ("ABORTED", "LEASE_EXPIRED")
        assert (await client.read_all(call))[1:] == ("UNAVAILABLE", "WORKER_LOST")
        assert len(broker.pool) == 1


async def test_a_worker_that_comes_back_elsewhere_has_lost_its_runs() -> None:
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        worker.script(run, Send(message("a")), Hang())
        call = client.start(run)
        assert await call.read() == message("a")
        moved = await worker.register(broker.address, address="127.0.0.1:1")
        assert list(moved.registered.given_up) == [run]
        assert (await client.read_all(call))[1:] == ("UNAVAILABLE", "WORKER_LOST")


async def test_what_a_worker_serves_may_change() -> None:
    async with connected() as (broker, client), ScriptedWorker("a") as worker:
        lease = await worker.register(broker.address, environments=[])
        assert not broker.pool.environments
        await lease.beat(environments=[env_service_pb2.EnvironmentDescription(name="b")])
        assert broker.pool.environments == {"b"}
        assert (await client.run(new_id(), environment="a"))[2] == "ENVIRONMENT_NOT_FOUND"


async def test_what_a_heartbeat_says_of_the_load_is_known_to_the_pool() -> None:
    async with connected() as (broker, _), ScriptedWorker() as worker:
        lease = await worker.register(broker.address)
        (known,) = broker.pool.workers()
        assert (known.load, known.reported_at) == (Load(), None)
        await lease.beat(running=3, open_windows=2, held_arrays=1, held_array_bytes=10, loop_lag_millis=0.5)
        assert (known.load, known.foreign) == (Load(3, 2, 1, 10, 0.5), 3)
        assert known.reported_at is not None
        await lease.beat(detail="run 8f7e2d57 blocks the loop" + "\N{EURO SIGN}" * 500)
        assert known.says.startswith("run 8f7e2d57 blocks the loop\N{EURO SIGN}")
        assert len(known.says.encode()) <= 1024
        await lease.beat()
        assert known.says == ""


async def test_a_worker_is_told_to_drain_between_its_heartbeats_and_gets_no_more_runs() -> None:
    async with connected() as (broker, client), ScriptedWorker() as worker:
        lease = await worker.register(broker.address)
        await lease.beat()
        assert broker._registry.drain(worker.instance, "the pool shrinks")
        assert (await client.run(new_id()))[2] == "NO_WORKER_READY"
        assert (await lease.read()).drain.cause == "the pool shrinks"
        broker._registry.drain(worker.instance, "again")
        await lease.beat(draining=True)  # nothing came but its answer
        await lease.leave()
        assert not broker._registry.drain(worker.instance, "it has left")


async def test_an_order_to_drain_ends_with_its_lease() -> None:
    async with connected() as (broker, _), ScriptedWorker() as worker:
        await worker.register(broker.address)
        broker._registry.drain(worker.instance, "the pool shrinks")
        again = await worker.register(broker.address)
        (known,) = broker.pool.workers()
        assert not known.draining  # until it says so, or is told again
        await again.beat(draining=True)
        assert known.draining


async def test_a_worker_whose_process_has_ended_is_lost_although_its_connection_stays_open() -> None:
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        lease = await worker.register(broker.address)
        worker.script(run, Send(message("a")), Hang())
        call = client.start(run)
        assert await call.read() == message("a")
        broker._registry.ended("unknown", "was killed")
        broker._registry.ended(worker.instance, "was killed by SIGKILL")
        assert broker.pool.workers() == ()
        assert (await client.read_all(call))[1:] == ("UNAVAILABLE", "WORKER_LOST")
        assert await lease.status() == ("ABORTED", "LEASE_EXPIRED")
        broker._registry.ended(worker.instance, "twice")
        # Nobody is left who would acknowledge it.
        assert list((await worker.register(broker.address)).registered.given_up) == []
