"""PoolService: those who watch the pool, each at its own pace."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

import grpc
from envtrio.v1.pool_service_pb2 import WatchPoolRequest

from env_broker.decoding import decoded
from env_broker.hello import check_generation
from env_broker.shared_view import SharedView
from env_broker.status import Refusal
from env_broker.tasks import first_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from envtrio.v1.pool_service_pb2 import WatchPoolResponse
    from grpc.aio import ServicerContext

    from env_broker.clock import Clock

    Context = ServicerContext[bytes, bytes]

log = logging.getLogger(__name__)

SERVICE: Final = "envtrio.v1.PoolService"
MAX_WATCHERS: Final = 64
DEFAULT_INTERVAL_MILLIS: Final = 1_000
LEAST_INTERVAL_MILLIS: Final = 100
LONGEST_INTERVAL_MILLIS: Final = 3_600_000

_LOOK_SECONDS: Final = 1.0
"""How often a watcher looks whether the pool has changed, at least. Load comes with heartbeats, which are no
more often, and looking is cheap: 0.03 ms for 8 workers, 2 ms for 1,024, and shared by those who look at about
the same time."""
_RETRY_SECONDS: Final = 5.0
_LAST_VIEW_SECONDS: Final = 1.0
"""How long a broker that stops waits for a watcher to take the view that is on its way."""


class PoolServicer:
    """PoolService, as a generic handler. Sends views.

    Nothing is queued for a watcher: its next view is made when the last one was written, so one that does not
    read misses views and costs nothing, and the next that it gets is the newest.

    Args:
        view: the pool as it is now.
        limit: most watchers at once.
    """

    def __init__(
        self, view: Callable[[], WatchPoolResponse], clock: Clock, *, limit: int = MAX_WATCHERS
    ) -> None:
        self._shared: Final = SharedView(view, clock)
        self._clock: Final = clock
        self._limit: Final = limit
        self._watchers = 0
        self._refusal: Refusal | None = None
        self._closed: Final = asyncio.Event()

    def handler(self) -> grpc.GenericRpcHandler:
        """What to add to a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                # What it sends is encoded once for all watchers.
                "WatchPool": grpc.unary_stream_rpc_method_handler(self.watch),
            },
        )

    async def watch(self, data: bytes, context: Context) -> None:
        """WatchPool, see pool_service.proto."""
        try:
            request = decoded(WatchPoolRequest, data)
            check_generation(request.protocol_generation)
            await self._watch(_interval(request), context)
        except Refusal as refusal:
            log.info("reason=%s %s", refusal.reason, refusal.message)
            await refusal.abort(context)

    def close(self, refusal: Refusal) -> None:
        """End every watcher with `refusal`: the broker stops."""
        self._refusal = refusal
        self._closed.set()

    async def _watch(self, seconds: float, context: Context) -> None:
        if self._watchers >= self._limit:
            raise Refusal(
                "TABLE_FULL",
                f"{self._watchers} watch the pool, the limit is {self._limit}; try again in "
                f"{_RETRY_SECONDS:g} s",
                retry_after=_RETRY_SECONDS,
                value=self._watchers,
                limit=self._limit,
            )
        self._watchers += 1
        try:
            writing = asyncio.Lock()
            await first_of(self._over(writing), self._stream(seconds, context, writing))
        finally:
            self._watchers -= 1

    async def _stream(self, seconds: float, context: Context, writing: asyncio.Lock) -> None:
        seen: int | None = None
        while True:
            taken = self._shared.newest(fresh=seen is None)
            if taken.version == seen:
                await self._clock.sleep(min(seconds, _LOOK_SECONDS))
                continue
            try:
                async with writing:
                    await context.write(taken.data)
            except Exception as error:  # what gRPC raises when the watcher is gone is not public
                log.debug("a watcher of the pool is gone: %s", error)
                return
            seen = taken.version
            await self._clock.sleep(seconds)

    async def _over(self, writing: asyncio.Lock) -> None:
        await self._closed.wait()
        assert self._refusal is not None
        # gRPC sends no status beside a view that is being written. Who reads nothing hears none.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_VIEW_SECONDS):
                await writing.acquire()
        raise self._refusal


def _interval(request: WatchPoolRequest) -> float:
    """Seconds between two views. Refusal where they are out of range."""
    millis = request.min_interval_millis or DEFAULT_INTERVAL_MILLIS
    if not LEAST_INTERVAL_MILLIS <= millis <= LONGEST_INTERVAL_MILLIS:
        raise Refusal(
            "INVALID_REQUEST",
            f"min_interval_millis is {millis}, the limits are {LEAST_INTERVAL_MILLIS} and "
            f"{LONGEST_INTERVAL_MILLIS}; choose a value between them, or 0 for {DEFAULT_INTERVAL_MILLIS}",
            field="min_interval_millis",
            value=millis,
            limit=f"{LEAST_INTERVAL_MILLIS} to {LONGEST_INTERVAL_MILLIS}",
        )
    return millis / 1000
