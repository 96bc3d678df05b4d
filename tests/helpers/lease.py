"""A worker's side of Register, step by step."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc
from envtrio.v1 import registry_service_pb2, registry_service_pb2_grpc

from tests.helpers.pool_watch import PoolWatcher
from tests.helpers.stub_client import reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence

PATIENCE_SECONDS: Final = 10.0
NOT_TRIED: Final = "the broker has yet to reach it"
"""What a view of the pool says of a worker while the broker's call to it has no answer."""


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

    async def dialled_back(self, instance: str) -> None:
        """Wait until the broker knows whether that worker can be reached, or does not know the worker."""
        pool = PoolWatcher(self._channel)
        async with asyncio.timeout(PATIENCE_SECONDS):
            undecided = True
            while undecided:
                # A new watch has a view at once, where the next one of an old watch keeps its interval.
                view = await (watch := pool.watch()).next()
                watch.cancel()
                undecided = any(w.instance == instance and NOT_TRIED in w.detail for w in view.workers)

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
