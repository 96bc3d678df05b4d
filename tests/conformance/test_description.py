"""Describe, health and reflection."""

from __future__ import annotations

import importlib.metadata
import re
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.helpers.stub_client import MIB, reason_of

if TYPE_CHECKING:
    from tests.helpers.pools import Subject
    from tests.helpers.stub_client import StubClient, Transport


@pytest.fixture
def transport() -> Transport:
    """Nothing is run here."""
    return "run"


async def test_describe_says_what_is_served_and_within_which_limits(
    client: StubClient, subject: Subject
) -> None:
    said = await client.describe()
    assert said.protocol_generation == 1
    assert said.version == importlib.metadata.version("envtrio")
    assert said.role == subject.name
    assert re.fullmatch("[0-9a-f]{32}", said.instance)
    environments = {environment.name: environment for environment in said.environments}
    assert sorted(environments) == ["scripted", "synthetic"]
    assert environments["scripted"].description == "does what its task says, for tests"
    assert environments["synthetic"].default_model == "simulated"
    assert said.limits.max_message_bytes == 64 * MIB
    assert said.limits.delta_target_bytes == MIB
    assert said.limits.max_concurrent_runs in (32, 64)  # a broker's second worker may be still on its way
    assert said.limits.max_queued_runs > 0
    assert said.late_cancel_seconds == 60.0
    assert said.ready_workers in (1, 2)
    assert (await client.describe()).instance == said.instance


async def test_describe_refuses_another_generation(client: StubClient) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.describe(generation=2)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert reason_of(caught.value) == "PROTOCOL_GENERATION"
    assert "2" in (caught.value.details() or "")
    assert "1" in (caught.value.details() or "")


async def test_health_serves(client: StubClient) -> None:
    answer = await client.health.Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    answer = await client.health.Check(
        health_pb2.HealthCheckRequest(service="envtrio.v1.EnvService"), timeout=10
    )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
        await client.health.Check(health_pb2.HealthCheckRequest(service="no.such.Service"), timeout=10)


async def test_reflection_lists_the_services(subject: Subject) -> None:
    async with grpc.aio.insecure_channel(subject.address) as channel:
        messages: Any = reflection_pb2  # its types know no aio channel and no constructors
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(cast("grpc.Channel", channel))
        request = messages.ServerReflectionRequest(list_services="")
        call = stub.ServerReflectionInfo(iter([request]), timeout=10)
        names = {service.name for service in (await call.read()).list_services_response.service}
    assert {"envtrio.v1.EnvService", "grpc.health.v1.Health"} <= names
