"""One worker's lease, and the one writer of its stream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from envtrio.v1 import registry_service_pb2

from env_broker.status import Refusal, short

if TYPE_CHECKING:
    from envtrio.v1.registry_service_pb2 import RegisterRequest, RegisterResponse
    from grpc.aio import ServicerContext


class Registration:
    """One lease: ends when its stream does, when it expires, or when somebody else ends it.

    Args:
        context: its stream.
    """

    def __init__(self, lease: str, context: ServicerContext[RegisterRequest, RegisterResponse]) -> None:
        self.lease: Final = lease
        self._context: Final = context
        self._writing: Final = asyncio.Lock()
        self._over: Final = asyncio.Event()
        self._refusal = Refusal("LEASE_EXPIRED", f"lease {short(lease)} is over; register again")
        self._ordered: Final = asyncio.Event()
        self._cause = ""

    async def send(self, frame: RegisterResponse) -> None:
        """Write a frame after those that are being written."""
        async with self._writing:
            await self._context.write(frame)

    async def acknowledge(self, seq: int, unreachable_because: str) -> None:
        """Answer a heartbeat."""
        ack = registry_service_pb2.HeartbeatAck(seq=seq, unreachable_because=unreachable_because)
        await self.send(registry_service_pb2.RegisterResponse(heartbeat_ack=ack))

    def order_drain(self, cause: str) -> None:
        """Tell the worker to drain and stop. Once is enough."""
        self._cause = cause
        self._ordered.set()

    def end(self, refusal: Refusal) -> None:
        """End it with a status."""
        self._refusal = refusal
        self._over.set()

    async def over(self) -> None:
        """Send the order, if there is one. Raises the Refusal with which the lease was ended."""
        ordered = asyncio.create_task(self._send_order())
        try:
            await self._over.wait()
        finally:
            ordered.cancel()
            # What its writing met, the reader has met too, and says it better.
            await asyncio.gather(ordered, return_exceptions=True)
        raise self._refusal

    async def _send_order(self) -> None:
        await self._ordered.wait()
        order = registry_service_pb2.DrainOrder(cause=self._cause)
        await self.send(registry_service_pb2.RegisterResponse(drain=order))
