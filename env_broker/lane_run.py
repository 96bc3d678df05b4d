"""One run in a stream that carries many: what came of it and has yet to be read, and how it ended."""

from __future__ import annotations

import asyncio
from collections import deque
from math import ceil
from typing import TYPE_CHECKING, Final, Protocol

import grpc.aio
from envtrio.v1.env_service_pb2 import EndRun

from env_broker import lane_frames
from env_broker.channel_options import MEBIBYTE
from env_broker.status import DETAILS_KEY
from env_broker.worker_call import WorkerCall

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from env_broker.held_request import HeldRequest

CREDIT_BYTES: Final = 256 * 1024
"""What a worker may send of a run before the first of it was read."""
LUMP_BYTES: Final = CREDIT_BYTES // 2
"""Credit for which a message is worth its cost; half of it where one leaves anyway."""
JOINED_BYTES: Final = MEBIBYTE
"""Most bytes of messages that are joined for the client; a larger one goes alone."""

_FRAME_BYTES: Final = 64
"""More than a frame has around what it carries."""
_LONGEST_SECONDS: Final = 366 * 86_400.0
"""A deadline further off than this is none: timers and milliseconds have their limits."""
_CODES: Final[Mapping[int, grpc.StatusCode]] = {code.value[0]: code for code in grpc.StatusCode}


class OverdrawnError(Exception):
    """A worker sent more of a run than it was allowed to."""


class Carrier(Protocol):
    """The stream that carries a run."""

    def due(self, run: LaneRun, *, pressing: bool = True) -> None:
        """The run has a frame for the worker; it leaves at once, or with whatever else leaves."""

    def leave(self, run: LaneRun) -> None:
        """Nobody wants the run any more."""


class LaneRun(WorkerCall):
    """A run in a lane. For one event loop; its carrier calls what is not of WorkerCall.

    Args:
        timeout: seconds until its deadline, or None.
        by_run: sends it by a call of its own, if the stream never took it up.
    """

    def __init__(
        self,
        carrier: Carrier,
        request: HeldRequest,
        timeout: float | None,
        by_run: Callable[[HeldRequest, float | None], WorkerCall],
    ) -> None:
        self.number = 0
        """In its stream; 0 until its open_run was made."""
        self.left = False
        """Whether nobody wants it any more."""
        self._carrier: Final = carrier
        self._request: HeldRequest | None = request
        self._by_run: Final = by_run
        self._call: WorkerCall | None = None
        self._parts: Final[deque[bytes]] = deque()
        self._size = 0
        self._allowed = CREDIT_BYTES
        self._taken = 0
        self._admitted = self._cancelled = False
        self._end: EndRun | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        if timeout is not None and timeout < _LONGEST_SECONDS:
            loop = asyncio.get_running_loop()
            self._deadline = loop.time() + timeout
            self._timer = loop.call_at(self._deadline, self._expire)

    # The relay's side.

    async def admitted(self) -> bool:
        """As in WorkerCall."""
        while not self._admitted:
            if self._call is not None:
                return await self._call.admitted()
            if self._end is not None:
                return False
            await self._news()
        return True

    async def read(self) -> bytes | None:
        """As in WorkerCall: all that waits, up to 1 MiB joined, or one message that is larger."""
        if self._call is not None:
            return await self._call.read()
        while not self._parts:
            if self._end is not None and not self._cancelled:
                if self._end.code:
                    raise _error(self._end)
                return None
            await self._news()
        return self._take()

    def cancel(self) -> None:
        """As in WorkerCall."""
        if self._call is not None:
            self._call.cancel()
        elif not self._cancelled:
            self._cancelled = True
            self._leave()
            self._parts.clear()
            if self._waiter is not None:
                self._waiter.cancel()

    # The carrier's side.

    @property
    def weight(self) -> int:
        """About how many bytes its frame has."""
        return _FRAME_BYTES + (len(self._request.data) if self._request is not None else 0)

    def opening(self, number: int) -> bytes:
        """Its first frame."""
        assert self._request is not None
        millis = None
        if self._deadline is not None:
            left = self._deadline - asyncio.get_running_loop().time()
            millis = max(1, ceil(left * 1_000))
        self.number = number
        data, self._request = self._request.data, None
        return lane_frames.open_run(number, data, credit=CREDIT_BYTES, timeout_millis=millis)

    def claim(self) -> int:
        """Bytes that the worker may send in addition, because as many were read."""
        credit, self._taken = self._taken, 0
        self._allowed += credit
        return credit

    def admit(self) -> None:
        """The worker has admitted it."""
        self._admitted = True
        self._wake()

    def receive(self, data: bytes) -> None:
        """A piece of its stream came.

        Raises:
            OverdrawnError: without credit.
        """
        if self._allowed <= 0:
            raise OverdrawnError(f"{len(data)} bytes of run number {self.number} came without credit")
        self._allowed -= len(data)
        self._admitted = True
        if data:
            self._parts.append(data)
            self._size += len(data)
        self._wake()

    def ended(self, end: EndRun) -> None:
        """It is over. The first end counts."""
        self._stop_timer()
        if self._end is None:
            self._end = end
            self._wake()

    def broke(self, code: grpc.StatusCode, details: str) -> None:
        """It is over, for a reason that no worker gave."""
        self.ended(EndRun(code=code.value[0], message=details))

    def fall_back(self) -> None:
        """The stream is over and has never carried it: send it by a call of its own."""
        self._stop_timer()
        assert self._request is not None
        left = None
        if self._deadline is not None:
            left = max(0.0, self._deadline - asyncio.get_running_loop().time())
        self._call = self._by_run(self._request, left)
        self._request = None
        self._wake()

    def _leave(self) -> None:
        self._stop_timer()
        self.left = True
        self._carrier.leave(self)
        self._request = None

    def _expire(self) -> None:
        if self._end is None:
            self._leave()
            self.broke(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take(self) -> bytes:
        parts = self._parts
        if len(parts) == 1:
            data = parts.popleft()
        elif self._size <= JOINED_BYTES:
            data = b"".join(parts)
            parts.clear()
        else:
            some = [parts.popleft()]
            size = len(some[0])
            while parts and size + len(parts[0]) <= JOINED_BYTES:
                size += len(parts[0])
                some.append(parts.popleft())
            data = b"".join(some)
        self._size -= len(data)
        self._taken += len(data)
        if self._taken >= LUMP_BYTES // 2 and self._end is None:
            self._carrier.due(self, pressing=self._taken >= LUMP_BYTES)
        return data

    async def _news(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _error(end: EndRun) -> grpc.aio.AioRpcError:
    """The status as a call of its own would have raised it."""
    details = ((DETAILS_KEY, end.status_details),) if end.status_details else ()
    return grpc.aio.AioRpcError(
        _CODES.get(end.code, grpc.StatusCode.UNKNOWN),
        grpc.aio.Metadata(),
        grpc.aio.Metadata(*details),
        details=end.message,
    )
