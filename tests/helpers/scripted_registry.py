"""A broker's side of Register, step by step."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
from envtrio.v1 import registry_service_pb2 as pb
from envtrio.v1 import registry_service_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Lease:
    """One Register call, seen from the broker."""

    def __init__(self, context: Any) -> None:
        self.over = asyncio.Event()
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self._context = context

    async def read(self) -> pb.RegisterRequest:
        """The worker's next frame."""
        frame = await asyncio.wait_for(self._context.read(), 10)
        assert isinstance(frame, pb.RegisterRequest), "the worker has ended its side"
        return frame

    async def beats_until(self, **fields: Any) -> pb.WorkerHeartbeat:
        """Read on to a heartbeat with these fields, and acknowledge all that come."""
        while True:
            frame = await self.read()
            await self.send(heartbeat_ack=pb.HeartbeatAck(seq=frame.heartbeat.seq))
            if all(getattr(frame.heartbeat, name) == value for name, value in fields.items()):
                return frame.heartbeat

    async def at_end(self) -> bool:
        """Read on to the end of the worker's side."""
        while await asyncio.wait_for(self._context.read(), 10) is not grpc.aio.EOF:
            pass
        return True

    async def send(self, **frame: Any) -> None:
        """Send one frame, e.g. `drain=...`."""
        await self._context.write(pb.RegisterResponse(**frame))

    async def register(self, **fields: Any) -> pb.WorkerHello:
        """Answer the hello, which is returned."""
        hello = (await self.read()).hello
        fields = {"lease": "1" * 32, "heartbeat_seconds": 0.05, "lease_seconds": 10, **fields}
        await self.send(registered=pb.Registered(**fields))
        return hello


class ScriptedRegistry(registry_service_pb2_grpc.RegistryServiceServicer):
    """Hands each Register call to the test, as a `Lease`."""

    def __init__(self) -> None:
        self._leases: asyncio.Queue[Lease] = asyncio.Queue()
        self._open: list[Lease] = []

    async def Register(  # type: ignore[override]  # the stubs know plain iterators only
        self, request_iterator: Any, context: Any
    ) -> None:
        lease = Lease(context)
        self._open.append(lease)
        self._leases.put_nowait(lease)
        await lease.over.wait()
        if lease.refusal is not None:
            await context.abort(*lease.refusal)

    async def lease(self) -> Lease:
        """The next call."""
        return await asyncio.wait_for(self._leases.get(), 10)

    def end(self) -> None:
        """End all calls."""
        for lease in self._open:
            lease.over.set()


@asynccontextmanager
async def registry(address: str = "127.0.0.1:0") -> AsyncIterator[tuple[ScriptedRegistry, str]]:
    """A registry that is served, and its HOST:PORT."""
    scripted = ScriptedRegistry()
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    registry_service_pb2_grpc.add_RegistryServiceServicer_to_server(scripted, server)
    port = server.add_insecure_port(address)
    await server.start()
    try:
        yield scripted, f"127.0.0.1:{port}"
    finally:
        scripted.end()
        await server.stop(0)
