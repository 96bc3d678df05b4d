"""The broker's lane to a worker: a Session stream that carries runs, opened with the first and then kept."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import grpc.aio
from envtrio.v1.env_service_pb2 import SessionOpen, SessionOpened, SessionRequest

from env_broker.channel_options import MEBIBYTE
from env_broker.hello import PROTOCOL_GENERATION
from env_broker.lane_run import LaneRun
from env_broker.lane_table import LaneFaultError, LaneTable
from env_broker.status import short
from env_broker.tasks import background, first_of
from env_broker.worker_messages import UnreadableError, parsed

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_broker.held_request import HeldRequest
    from env_broker.session_names import SessionNames
    from env_broker.worker_call import WorkerCall

    StreamCall = grpc.aio.StreamStreamCall[bytes, bytes]

log = logging.getLogger(__name__)

CAPABILITY: Final = "session-runs"
MAX_REQUEST_BYTES: Final = MEBIBYTE
"""Of a run in a stream: a larger one would hold up the others, and goes by Run."""
OPEN_SECONDS: Final = 5.0
"""How long a worker may take to open the stream, while runs wait for it."""
PAUSE_SECONDS: Final = 5.0
"""How long runs go by Run, when it could not be opened, before it is tried again."""


class _NotOpenedError(Exception):
    """The worker did not take the stream up: runs go by Run."""


class _OtherWorkerError(Exception):
    """Somebody else is at the worker's address."""


class WorkerLane:
    """Carries runs to one worker in one stream at a time.

    Where the stream breaks, the runs that it carried end with UNAVAILABLE, and the next run opens it anew.
    Runs that come while it is being opened wait for it. Where it cannot be opened, they go by Run, and so do
    those that were never sent when it broke.

    Args:
        worker: the worker, as logs name it.
        instance: the worker's instance.
        names: what the sessions of all lanes are called.
        stream: starts the call of a Session, in bytes.
        by_run: sends a run by a call of its own, with seconds until its deadline.
    """

    def __init__(
        self,
        worker: str,
        instance: str,
        names: SessionNames,
        *,
        stream: Callable[[], StreamCall],
        by_run: Callable[[HeldRequest, float | None], WorkerCall],
    ) -> None:
        self.offered = False
        """Whether the worker says that it carries runs in a session."""
        self._worker: Final = worker
        self._instance: Final = instance
        self._names: Final = names
        self._stream: Final = stream
        self._by_run: Final = by_run
        self._table: LaneTable | None = None
        self._task: asyncio.Task[None] | None = None
        self._pause_ends = 0.0

    def takes(self, request: HeldRequest) -> bool:
        """Whether it is to be sent by the lane, as far as is known now."""
        return (
            self.offered
            and len(request.data) <= MAX_REQUEST_BYTES
            and (self._table is not None or asyncio.get_running_loop().time() >= self._pause_ends)
        )

    def start(self, request: HeldRequest, timeout: float | None) -> LaneRun:
        """Start a run; `timeout` in seconds. The caller cancels it."""
        table = self._table
        if table is None:
            wake = asyncio.Event()
            table = self._table = LaneTable(wake.set)
            self._task = background(self._hold(table, wake), f"lane to {self._worker}")
        run = LaneRun(table, request, timeout, self._by_run)
        table.due(run)
        return run

    def end(self) -> None:
        """End the stream at once, and the runs that it carries. Synchronous; `close` follows."""
        if self._task is not None:
            self._task.cancel()
        if self._table is not None:
            self._ended(self._table, "the broker left it", opened=True, fall_back=False)

    async def close(self) -> None:
        """End the stream, and return when it has ended."""
        self.end()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _hold(self, table: LaneTable, wake: asyncio.Event) -> None:
        """Hold one stream, from its opening to its end."""
        opened, fall_back, reason = False, True, "a fault of the broker itself"
        call: StreamCall | None = None
        try:
            call = self._stream()
            await self._open(call)
            opened, reason = True, "the worker ended it"
            await first_of(_write(call, table, wake), _read(call, table))
        except _OtherWorkerError as error:
            fall_back, reason = False, str(error)
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
        except (LaneFaultError, UnreadableError, _NotOpenedError) as error:
            reason = str(error)
        except asyncio.InvalidStateError as error:  # what writing to a call that has ended raises
            reason = str(error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            reason = "CANCELLED"  # it was not we who were cancelled
        finally:
            if call is not None:
                call.cancel()
            if self._table is table:
                self._ended(table, reason, opened=opened, fall_back=fall_back)

    async def _open(self, call: StreamCall) -> None:
        frame = SessionOpen(
            session_id=self._names.session_id(self._instance),
            epoch=self._names.next_epoch(),
            protocol_generation=PROTOCOL_GENERATION,
        )
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await call.write(SessionRequest(open=frame).SerializeToString())
                first = await call.read()
        except TimeoutError:
            raise _NotOpenedError(f"it was not opened within {OPEN_SECONDS:g} s") from None
        opened = (await parsed(first)).opened if isinstance(first, bytes) else SessionOpened()
        if CAPABILITY not in opened.capabilities:
            raise _NotOpenedError(f"it was not opened with the capability {CAPABILITY}")
        if opened.instance != self._instance:
            raise _OtherWorkerError(f"another process answers there, {short(opened.instance)}")

    def _ended(self, table: LaneTable, reason: str, *, opened: bool, fall_back: bool) -> None:
        """Without an await, so that no run comes in between."""
        self._table = None
        if not opened and fall_back:
            self._pause_ends = asyncio.get_running_loop().time() + PAUSE_SECONDS
            log.warning("worker=%s carries no runs in a session, they go by Run: %s", self._worker, reason)
        else:
            level = logging.WARNING if len(table) else logging.INFO
            log.log(level, "worker=%s session stream of %d runs ended: %s", self._worker, len(table), reason)
        table.end(grpc.StatusCode.UNAVAILABLE, reason, fall_back=fall_back)


async def _write(call: StreamCall, table: LaneTable, wake: asyncio.Event) -> None:
    """Send what is due; what comes while a message is being written goes with the next one."""
    while True:
        while message := table.next_message():
            await call.write(message)
        wake.clear()
        await wake.wait()


async def _read(call: StreamCall, table: LaneTable) -> None:
    """Hand out what comes, to the end of the stream."""
    while isinstance(data := await call.read(), bytes):
        table.take(await parsed(data))
