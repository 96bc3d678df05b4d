"""What a broker says of itself: Describe, Health, reflection."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import pytest
from envtrio.v1 import env_service_pb2, env_service_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from env_broker.config import BrokerSettings
from env_broker.listening import StartError
from env_broker.server import BrokerServer
from tests.helpers.raw_client import connected, message
from tests.helpers.scripted_worker import ScriptedWorker, Send
from tests.helpers.stub_client import OPTIONS, new_id, reason_of

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def refused(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code().name, reason_of(error.value)


async def test_describe_is_the_union_of_ready_workers() -> None:
    async with (
        connected(max_queue=9) as (broker, _),
        ScriptedWorker("a", "b", slots=2, late_cancel_seconds=30) as one,
        ScriptedWorker("b", "c", slots=3, late_cancel_seconds=90) as two,
        grpc.aio.insecure_channel(broker.address, options=OPTIONS) as channel,
    ):
        stub = env_service_pb2_grpc.EnvServiceStub(channel)
        request = env_service_pb2.DescribeRequest(protocol_generation=1)
        empty = await stub.Describe(request)
        assert (empty.role, empty.ready_workers, empty.late_cancel_seconds) == ("broker", 0, 60.0)
        assert list(empty.environments) == []
        await one.register(broker.address)
        lease = await two.register(broker.address)
        full = await stub.Describe(request)
        assert [environment.name for environment in full.environments] == ["a", "b", "c"]
        assert (full.ready_workers, full.late_cancel_seconds) == (2, 90.0)
        assert (full.limits.max_concurrent_runs, full.limits.max_queued_runs) == (5, 9)
        assert full.limits.max_message_bytes == 64 * 2**20
        assert full.instance == broker.instance
        await lease.beat(draining=True)
        assert [environment.name for environment in (await stub.Describe(request)).environments] == ["a", "b"]
        other = stub.Describe(env_service_pb2.DescribeRequest())
        assert await refused(other) == ("FAILED_PRECONDITION", "PROTOCOL_GENERATION")


async def test_health_serves_while_a_worker_would_take_a_run() -> None:
    async with (
        connected() as (broker, _),
        ScriptedWorker() as worker,
        grpc.aio.insecure_channel(broker.address, options=OPTIONS) as channel,
    ):
        for service in ("", "envtrio.v1.EnvService"):
            request = health_pb2.HealthCheckRequest(service=service)
            watch: Any = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=20)
            assert (await watch.read()).status == NOT_SERVING
            lease = await worker.register(broker.address)
            assert (await watch.read()).status == SERVING
            await lease.beat(draining=True)
            assert (await watch.read()).status == NOT_SERVING
            watch.cancel()
            await lease.leave()


async def test_a_long_cause_and_a_foreign_generation_are_refused() -> None:
    async with (
        connected() as (broker, _),
        grpc.aio.insecure_channel(broker.address, options=OPTIONS) as channel,
    ):
        cancel = env_service_pb2_grpc.EnvServiceStub(channel).Cancel
        long = env_service_pb2.CancelRequest(request_id=new_id(), protocol_generation=1, cause="x" * 257)
        assert await refused(cancel(long)) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
        foreign = env_service_pb2.CancelRequest(request_id=new_id(), protocol_generation=3)
        assert await refused(cancel(foreign)) == ("FAILED_PRECONDITION", "PROTOCOL_GENERATION")


async def test_reflection_names_the_services() -> None:
    async with (
        connected() as (broker, _),
        grpc.aio.insecure_channel(broker.address, options=OPTIONS) as channel,
    ):
        call: Any = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = {service.name for service in (await call.read()).list_services_response.service}
        call.cancel()
        assert {
            "envtrio.v1.EnvService",
            "envtrio.v1.RegistryService",
            "envtrio.v1.PoolService",
            "grpc.health.v1.Health",
        } <= listed


async def test_a_port_that_is_taken_is_said_to_be() -> None:
    async with connected() as (broker, _):
        second = BrokerServer(BrokerSettings(listen=broker.address))
        with pytest.raises(StartError, match=broker.address):
            await second.start()


async def test_a_broker_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    async with connected() as (broker, client), ScriptedWorker() as worker:
        await worker.register(broker.address)
        run = new_id()
        worker.script(run, Send(message("a")))
        assert (await client.run(run))[1] == "OK"
    left = {task for task in asyncio.all_tasks() - before if "env_broker" in repr(task.get_coro())}
    with contextlib.suppress(TimeoutError):
        if left:
            await asyncio.wait(left, timeout=1)
    assert not {task for task in left if not task.done()}
