"""One run that a lane carries."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc

from env_client.lane_frames import INITIAL_CREDIT, RunStatus
from env_client.statuses import rpc_error

if TYPE_CHECKING:
    from collections.abc import Awaitable

_JOINED_BYTES: Final = 1024 * 1024
# Credit is given back in lumps, so that a short run costs no frame for it; half a lump where a message leaves
# anyway, as where there are many runs: then next to no message has nothing but credit.
_LUMP_BYTES: Final = INITIAL_CREDIT // 2


class RunCall(Protocol):
    """A run on its way here. gRPC's own calls are such, of method Run with serialized answers."""

    def read(self) -> Awaitable[Any]:
        """The next bytes, of one or more serialized DeltaStreams; `grpc.aio.EOF` after the status OK.

        Raises:
            grpc.RpcError: the run ended with another status.
            asyncio.CancelledError: the call was cancelled.
        """

    def cancel(self) -> object:
        """Give the run up. Idempotent, does not block. RuntimeError if its loop is closed."""


class Carrier(Protocol):
    """What carries runs, by number."""

    def credit(self, number: int, run: LaneRun, *, pressing: bool) -> None:
        """Allow what `run` claims; at once, or with whatever else is said."""

    def leave(self, number: int) -> None:
        """Nobody wants more of it."""


class LaneRun:
    """A `RunCall` in a lane. What comes of it waits here for its reader; all belongs to one event loop.

    Args:
        loop: the event loop.
        carrier: is told of credit, and if the run is left. Let go when the run has ended.
        number: the run.
        deadline: when it ends, if it has not yet, in seconds of the loop's clock; None: no limit.
    """

    __slots__ = (
        "_call", "_carrier", "_credit", "_is_cancelled", "_loop", "_number", "_pieces", "_reader", "_status",
        "_taken", "_timer", "nothing_came",
    )  # fmt: skip

    def __init__(
        self, loop: asyncio.AbstractEventLoop, carrier: Carrier, number: int, deadline: float | None
    ) -> None:
        self._loop = loop
        self._carrier: Carrier | None = carrier
        self._number = number
        self._timer = None if deadline is None else loop.call_at(deadline, self._expire)
        self._pieces: deque[bytes] = deque()
        # Bytes that the server may still send, for all that is known here: at most what it knows of itself.
        self._credit = INITIAL_CREDIT
        # Bytes that were read and not yet given back as credit.
        self._taken = 0
        self._reader: asyncio.Future[None] | None = None
        self._status: RunStatus | None = None
        self._is_cancelled = False
        self._call: RunCall | None = None
        # Not even its admission, while the lane carries it.
        self.nothing_came = True

    async def read(self) -> Any:
        """What has come, at once; as `RunCall` says.

        Raises:
            RuntimeError: another task reads it.
        """
        while not self._pieces:
            if self._is_cancelled:
                raise asyncio.CancelledError
            if self._call is not None:
                return await self._call.read()
            if self._status is not None:
                return self._concluded(self._status)
            if self._reader is not None:
                raise RuntimeError("two tasks read one run: let one read, and pass on what comes")
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._take()

    def cancel(self) -> None:
        """Give it up, as `RunCall` says."""
        if self._is_cancelled:
            return
        self._is_cancelled = True
        self._pieces.clear()
        carrier = self._let_go()
        if carrier is not None:
            carrier.leave(self._number)
        if self._call is not None:
            self._call.cancel()
        if self._reader is not None:
            self._reader.cancel()

    def append(self, piece: bytes) -> None:
        """A piece of its stream came. More than was allowed ends the run: nothing may grow without bound."""
        if self._carrier is None:
            return  # Over: it may have been given up while this was on its way.
        if self._credit <= 0:
            self._give_up(grpc.StatusCode.INTERNAL, "the server sent more of this run than it was allowed to")
        elif piece:
            self.nothing_came = False
            self._credit -= len(piece)
            self._pieces.append(piece)
            self._wake()

    def end(self, status: RunStatus) -> None:
        """Its end came: its reader gets what came before, then that. Only the first one counts."""
        if self._status is None:
            self._status = status
            self._let_go()
            self._wake()

    def claim(self) -> int:
        """Bytes that the server may send in addition, because as many were read."""
        credit, self._taken = self._taken, 0
        self._credit += credit
        return credit

    def follow(self, call: RunCall) -> None:
        """It is no longer carried by the lane, which nothing came of, but by a call of its own."""
        self._let_go()
        self._call = call
        self._wake()

    def _take(self) -> bytes:
        piece = self._pieces.popleft()
        size = len(piece)
        if self._pieces:
            joined = [piece]
            while self._pieces and size + len(self._pieces[0]) <= _JOINED_BYTES:
                size += len(self._pieces[0])
                joined.append(self._pieces.popleft())
            piece = b"".join(joined)
        self._taken += size
        if self._taken >= _LUMP_BYTES // 2 and self._carrier is not None:
            self._carrier.credit(self._number, self, pressing=self._taken >= _LUMP_BYTES)
        return piece

    @staticmethod
    def _concluded(status: RunStatus) -> Any:
        if status.code == 0:
            return grpc.aio.EOF
        # Made here: one that was kept would hold, by its traceback, whoever keeps it.
        raise rpc_error(status.code, status.message, status.details)

    def _expire(self) -> None:
        self._give_up(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _give_up(self, code: grpc.StatusCode, message: str) -> None:
        carrier = self._let_go()
        if carrier is not None:
            carrier.leave(self._number)
        self.end(RunStatus(code.value[0], message))

    def _let_go(self) -> Carrier | None:
        if self._timer is not None:
            self._timer.cancel()
        carrier, self._carrier = self._carrier, None
        return carrier

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
