"""A worker's side of Register, step by step."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc
from envtrio.v1 import registry_service_pb2, registry_service_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.helpers.stub_client import reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence

PATIENCE_SECONDS: Final = 10.0


class Lease:
    """One registration at a broker."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._call: Any = registry_service_pb2_grpc.RegistryServiceStub(channel).Register()
        self._seq = 0
        self.registered = registry_service_pb2.Registered()

    async def send(self, **frame: Any) -> None:
        """Send one frame, e.g. `hello=...`."""
        await self._call.write(registry_service_pb2.RegisterRequest(**frame))

    async def read(self) -> registry_service_pb2.RegisterResponse:
        """The broker's next frame. EOFError when the stream ended OK, AioRpcError when it did not."""
        frame = await asyncio.wait_for(self._call.read(), PATIENCE_SECONDS)
        if not isinstance(frame, registry_service_pb2.RegisterResponse):
            raise EOFError(f"the lease ended with {await self._call.code()}")
        return frame

    async def beat(self, **fields: Any) -> None:
        """Send a heartbeat and wait for its acknowledgement."""
        self._seq += 1
        await self.send(heartbeat=registry_service_pb2.WorkerHeartbeat(seq=self._seq, **fields))
        assert (await self.read()).heartbeat_ack.seq == self._seq

    async def round_trip(self) -> None:
        """Ask the broker something that changes nothing, so that it has seen what it got before."""
        health: Any = health_pb2_grpc.HealthStub(self._channel)  # its types know no aio channel
        await health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_SECONDS)

    async def acknowledge(self, request_ids: Sequence[str]) -> None:
        """These were discarded. A heartbeat follows, so that the broker has seen it."""
        await self.send(given_up_ack=registry_service_pb2.GivenUpAck(request_ids=request_ids))
        await self.beat()

    async def leave(self) -> None:
        """End our side and wait for the broker's end."""
        await self._call.done_writing()
        await asyncio.wait_for(self._call.code(), PATIENCE_SECONDS)
        await self.close()

    async def status(self) -> tuple[str, str]:
        """Code and reason with which the broker ended the lease."""
        try:
            while True:
                await self.read()
        except EOFError:
            return "OK", ""
        except grpc.aio.AioRpcError as error:
            return error.code().name, reason_of(error)

    async def close(self) -> None:
        """Hang up."""
        self._call.cancel()
        await self._channel.close()
