"""Watches a broker's pool, view by view."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import grpc
from envtrio.v1 import pool_service_pb2, pool_service_pb2_grpc

from tests.helpers.oracle import GuaranteeBroken
from tests.helpers.stub_client import GENERATION, OPTIONS, reason_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from envtrio.v1.pool_service_pb2 import WatchPoolResponse, WorkerView

PATIENCE_SECONDS: Final = 15.0


class PoolWatch:
    """One WatchPool call; its views in order."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.views: list[WatchPoolResponse] = []

    async def next(self) -> WatchPoolResponse:
        """The next view. AioRpcError when the call ended."""
        view = await asyncio.wait_for(self._call.read(), PATIENCE_SECONDS)
        assert isinstance(view, pool_service_pb2.WatchPoolResponse)
        self.views.append(view)
        return view

    async def until(self, true: Callable[[WatchPoolResponse], object]) -> WatchPoolResponse:
        """The first view of which that is true, from the one that was read last on."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            view = self.views[-1] if self.views else await self.next()
            while not true(view):
                view = await self.next()
        return view

    async def status(self) -> tuple[str, str, grpc.aio.AioRpcError]:
        """Code and reason with which it ends; views before that are passed over."""
        try:
            while True:
                await self.next()
        except grpc.aio.AioRpcError as error:
            return error.code().name, reason_of(error), error

    def cancel(self) -> None:
        """Hang up."""
        self._call.cancel()


class PoolWatcher:
    """Starts WatchPool calls at one broker."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = pool_service_pb2_grpc.PoolServiceStub(channel)
        self._watches: list[PoolWatch] = []

    def watch(self, millis: int = 100, generation: int = GENERATION) -> PoolWatch:
        """Start one, with that least interval."""
        request = pool_service_pb2.WatchPoolRequest(
            protocol_generation=generation, min_interval_millis=millis
        )
        self._watches.append(PoolWatch(self._stub.WatchPool(request)))
        return self._watches[-1]

    def hang_up(self) -> None:
        """End all of them."""
        for watch in self._watches:
            watch.cancel()


@asynccontextmanager
async def watcher(address: str) -> AsyncIterator[PoolWatcher]:
    """Starts WatchPool calls at that broker, which end with it."""
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        watching = PoolWatcher(channel)
        try:
            yield watching
        finally:
            watching.hang_up()


def states(view: WatchPoolResponse) -> list[str]:
    """The workers' states, without their prefix."""
    return [state(worker) for worker in view.workers]


def state(worker: WorkerView) -> str:
    """A worker's state, without its prefix."""
    return pool_service_pb2.WorkerState.Name(worker.state).removeprefix("WORKER_STATE_")


def counters_add_up(view: WatchPoolResponse) -> None:
    """At rest every run that came has ended in one way. GuaranteeBroken if the counters say otherwise."""
    counted = view.counters
    ended = sum(counted[name] for name in ("replied", "cancelled", "failed", "refused"))
    if counted["runs"] != ended:
        raise GuaranteeBroken(
            f"broke CountersAddUp: {ended} runs ended of {counted['runs']}: {dict(counted)}"
        )
