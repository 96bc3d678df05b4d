"""Health of a broker: SERVING only while a run would be served."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health_aio

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class PoolHealth:
    """Keeps the standard health service right.

    Args:
        ready: whether a run would be served now.
        services: whose health it is.
    """

    def __init__(self, ready: Callable[[], bool], services: Sequence[str]) -> None:
        self.servicer: Final = health_aio.HealthServicer()
        self._ready: Final = ready
        self._services: Final = tuple(services)
        self._changes: Final = asyncio.Event()

    def changed(self) -> None:
        """What `ready` says may have changed."""
        self._changes.set()

    async def keep(self) -> None:
        """Publish changes, without an end."""
        while True:
            await self._changes.wait()
            self._changes.clear()
            await self.publish()

    async def publish(self) -> None:
        """Publish what holds now."""
        response = health_pb2.HealthCheckResponse
        for service in self._services:
            await self.servicer.set(service, response.SERVING if self._ready() else response.NOT_SERVING)
