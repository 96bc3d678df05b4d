"""Whether a server takes runs, by its health service."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from env_client.channels import SERVING_NAMES
from env_client.errors import UnavailableError
from env_client.pool import NOT_REACHED, not_ready, why_not_ready
from env_client.statuses import env_error, translated

if TYPE_CHECKING:
    from collections.abc import Callable


async def health(channel: grpc.aio.Channel, timeout: float) -> str:
    """The health's name, asked once within `timeout` seconds.

    Raises:
        EnvError: there is no answer.
    """
    stub: Any = health_pb2_grpc.HealthStub(channel)
    answer = await translated(stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout))
    return SERVING_NAMES[answer.status]


async def wait_until_serving(
    open_channel: Callable[[], grpc.aio.Channel], target: str, timeout: float | None
) -> None:
    """Return once the server at `target` is SERVING; it need not be there yet.

    Raises:
        UnavailableError: it was not within `timeout` seconds (None: for ever).
        EnvError: it has no health to ask for.
    """
    stub: Any = health_pb2_grpc.HealthStub(open_channel())
    last = NOT_REACHED
    try:
        async with asyncio.timeout(timeout):
            while True:
                call = stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
                try:
                    async for answer in call:
                        last = SERVING_NAMES[answer.status]
                        if answer.status == health_pb2.HealthCheckResponse.SERVING:
                            return
                except grpc.RpcError as error:
                    said = env_error(error)
                    if not isinstance(said, UnavailableError):
                        raise said from error
                    last = str(said)
                finally:
                    call.cancel()
                await asyncio.sleep(0.1)
    except TimeoutError as error:
        asks = last in ("NOT_SERVING", NOT_REACHED)
        raise not_ready(target, timeout, last, await why_not_ready(open_channel()) if asks else "") from error
