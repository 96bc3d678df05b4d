"""EnvClient's other calls, and what its exceptions carry."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from envtrio.v1.env_service_pb2 import CancelOutcome
from grpc_health.v1 import health_pb2

from env_client import (
    EnvClient,
    EnvError,
    InvalidRequestError,
    InvalidTaskError,
    MessageTooLargeError,
    QueueFullError,
    UnavailableError,
)
from env_client.channels import open_aio_channel, open_sync_channel
from tests.helpers.deltas import episode_stream
from tests.helpers.scripted_end import End
from tests.helpers.scripted_service import ScriptedService, Send

RUN = "0123456789abcdef0123456789abcdef"
TRANSPORTS = ("run", "lane")


async def test_health_and_describe(service: ScriptedService) -> None:
    async with EnvClient(service.address) as client:
        service.serve(health_pb2.HealthCheckResponse.NOT_SERVING)
        assert await client.health() == "NOT_SERVING"
        waiting = asyncio.create_task(client.wait_until_ready())
        service.serve(health_pb2.HealthCheckResponse.SERVING)
        await waiting
        assert await client.health() == "SERVING"
        assert (await client.describe()).late_cancel_seconds == 60.0


async def test_not_ready_within_the_timeout(service: ScriptedService) -> None:
    service.serve(health_pb2.HealthCheckResponse.NOT_SERVING)
    async with EnvClient(service.address) as client:
        with pytest.raises(UnavailableError, match=r"not SERVING within 0\.2 s, at last: NOT_SERVING"):
            await client.wait_until_ready(0.2)


async def test_a_server_that_is_not_there() -> None:
    async with EnvClient("127.0.0.1:1") as client:
        with pytest.raises(UnavailableError):
            await client.health()
        with pytest.raises(
            UnavailableError, match=r"at last: not reached \(.*Connection refused\); see that a broker"
        ):
            await client.wait_until_ready(0.2)


async def test_a_server_without_health() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with EnvClient(f"127.0.0.1:{port}") as client:
        with pytest.raises(EnvError, match="UNIMPLEMENTED"):
            await client.wait_until_ready(10)
    await server.stop(None)


async def test_cancel(service: ScriptedService) -> None:
    remembered, too_late = CancelOutcome.CANCEL_OUTCOME_REMEMBERED, CancelOutcome.CANCEL_OUTCOME_TOO_LATE
    gone, aborted = End(grpc.StatusCode.UNAVAILABLE, "WORKER_SILENT"), CancelOutcome.CANCEL_OUTCOME_ABORTED
    async with EnvClient(service.address) as client:
        service.on_cancel(too_late)
        assert await client.cancel(RUN) == "TOO_LATE"
        with pytest.raises(InvalidRequestError):
            await client.cancel("foreign")
    assert service.cancelled_ids() == [RUN]
    for line, expected in ((remembered, "REMEMBERED"), (gone, "WORKER_SILENT")):
        service.on_cancel(line, aborted)
        async with EnvClient(service.address) as client:
            try:
                assert await client.cancel(RUN) == expected
            except UnavailableError as error:
                assert error.reason == expected  # noqa: PT017
    # Each was repeated once more in the background.
    assert service.cancelled_ids() == [RUN] * 5


async def test_what_an_exception_carries(service: ScriptedService) -> None:
    service.on_run(
        End(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "QUEUE_FULL",
            "256 runs wait, the limit is 256",
            metadata={"limit": "256"},
            retry_seconds=2,
        )
    )
    async with EnvClient(service.address) as client:
        with pytest.raises(QueueFullError) as caught:
            await client.run({}, request_id=RUN)
    error = caught.value
    assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
    assert (error.request_id, error.retry_after, error.metadata) == (RUN, 2.0, {"limit": "256"})
    assert str(error) == "run 01234567: RESOURCE_EXHAUSTED QUEUE_FULL: 256 runs wait, the limit is 256"
    assert isinstance(error.__cause__, grpc.RpcError)


async def test_nothing_leaves_of_a_malformed_request(service: ScriptedService) -> None:
    tasks: list[Any] = [[], None, {"x": float("inf")}]
    async with EnvClient(service.address) as client:
        for task in tasks:
            with pytest.raises(InvalidTaskError):
                await client.run(task)
        with pytest.raises(MessageTooLargeError):
            await client.run({"x": "y" * 70_000_000})
        with pytest.raises(InvalidRequestError):
            await client.run({}, timeout=-1)
    assert service.runs == []
    assert service.cancels == []


async def test_big_requests_and_messages_cross(service: ScriptedService) -> None:
    service.on_run(*(Send(message) for message in episode_stream(1, count=3_000_000)))
    async with EnvClient(service.address, timeout=50) as client:
        episode = await client.run({"x": "y" * 20_000_000})
    assert len(episode.traces[0].nodes[1].mask) == 3_000_000


async def test_a_client_that_was_never_used_closes() -> None:
    async with EnvClient("127.0.0.1:1"):
        pass


async def test_tls_channels() -> None:
    credentials = grpc.ssl_channel_credentials()
    open_sync_channel("127.0.0.1:1", credentials).close()
    await open_aio_channel("127.0.0.1:1", credentials).close()
