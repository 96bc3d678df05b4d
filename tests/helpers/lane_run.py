"""A run in the stream of a session, with the face of a Run's call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc
from envtrio.v1 import delta_pb2
from envtrio.v1 import env_service_pb2 as pb

from tests.helpers.guarantee import broke

if TYPE_CHECKING:
    from collections.abc import Callable

CREDIT: Final = 256 * 1024
PATIENCE_SECONDS: Final = 1.0
"""A deadline is the server's to watch. Its caller waits no longer than so much more."""
DETAILS_KEY: Final = "grpc-status-details-bin"
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class LaneRun:
    """One run. Its caller reads its messages and then its status, as of a grpc.aio call.

    Attributes:
        run: its request_id.
        frames: the kinds of all that the server sent of it.
        end: what the server said at last.
    """

    def __init__(self, number: int, run: str, put: Callable[..., None]) -> None:
        self.number: Final = number
        self.run: Final = run
        self.frames: list[str] = []
        self.end: pb.EndRun | None = None
        self._put: Final = put
        self._data: list[bytes] = []
        self._allowed = CREDIT
        self._taken = 0
        """Bytes that were read, and that the server was not told of."""
        self._over: grpc.aio.AioRpcError | None = None
        """The status, also OK, once its caller is to hear of it."""
        self._fault: Exception | None = None
        """Why the server will say nothing more."""
        self._deadline: asyncio.TimerHandle | None = None
        self._news: Final = asyncio.Event()

    async def read(self) -> Any:
        """The next message; grpc.aio.EOF behind the last. AioRpcError where the run ended otherwise."""
        await self._until(lambda: self._data or self._over)
        if self._data:
            data = self._data.pop(0)
            self._taken += len(data)
            if self._taken >= CREDIT // 2:
                self.allow(self._taken)
                self._taken = 0
            return delta_pb2.DeltaStream.FromString(data)
        if await self.code() is not grpc.StatusCode.OK:
            raise await self._status()
        return grpc.aio.EOF

    async def initial_metadata(self) -> None:
        """Return when it was admitted, or is over."""
        await self._until(lambda: "run_admitted" in self.frames or self._over)

    async def code(self) -> grpc.StatusCode:
        """The status, when it is over."""
        return (await self._status()).code()

    async def details(self) -> str | None:
        """The status message."""
        return (await self._status()).details()

    async def trailing_metadata(self) -> Any:
        """What Run has in its trailing metadata."""
        return (await self._status()).trailing_metadata()

    async def told(self) -> pb.EndRun:
        """What the server says at last, also of a run that was left. EOFError if the stream ended first."""
        await self._until(lambda: self.end)
        assert self.end is not None
        return self.end

    def cancelled(self) -> bool:
        """Whether its caller left it."""
        return self._over is not None and self._over.code() is grpc.StatusCode.CANCELLED

    def cancel(self) -> None:
        """Leave it. What came and was not read is dropped."""
        self._leave(grpc.StatusCode.CANCELLED, "left by its caller")

    def allow(self, size: int) -> None:
        """Give credit."""
        if self.end is None:
            self._allowed += size
            self._put(run_credit=pb.RunCredit(run_number=self.number, credit_bytes=size))

    # For its lane.

    def expire_in(self, seconds: float) -> None:
        """It has a deadline, which the server knows."""
        loop, code = asyncio.get_running_loop(), grpc.StatusCode.DEADLINE_EXCEEDED
        late = seconds + PATIENCE_SECONDS
        self._deadline = loop.call_later(late, self._leave, code, f"no end came within {late:g} s")

    def take(self, kind: str, frame: Any) -> None:
        """The server sent a frame of it."""
        if kind == "run_admitted":
            if self.frames:
                broke("AdmittedFirst", self.run, f"run_admitted came after {self.frames}")
        elif kind == "run_data":
            if "run_admitted" not in self.frames:
                broke("AdmittedFirst", self.run, "data came, and it was not admitted")
            if self._allowed <= 0:
                broke("CreditKept", self.run, f"data came with a credit of {self._allowed} bytes")
            self._allowed -= len(frame.data)
            if self._over is None:
                self._data.append(frame.data)
        else:
            self.end = frame
            self._finish(_CODES[frame.code], frame.message, frame.status_details)
        self.frames.append(kind)
        self._news.set()

    def stream_over(self, code: grpc.StatusCode, message: str, fault: Exception) -> None:
        """The server says nothing more: its caller hears this, who asks what the server said, the fault."""
        self._fault = fault
        self._finish(code, message)

    def _leave(self, code: grpc.StatusCode, message: str) -> None:
        if self._over is None:
            self._data.clear()
            self._put(leave_run=pb.LeaveRun(run_number=self.number))
        self._finish(code, message)

    def _finish(self, code: grpc.StatusCode, message: str, details: bytes = b"") -> None:
        if self._over is None:
            trailing = grpc.aio.Metadata(*([(DETAILS_KEY, details)] if details else []))
            self._over = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, message)
        if self._deadline is not None:
            self._deadline.cancel()
        self._news.set()

    async def _status(self) -> grpc.aio.AioRpcError:
        await self._until(lambda: self._over)
        assert self._over is not None
        return self._over

    async def _until(self, reached: Callable[[], object]) -> None:
        while not reached():
            if self._fault is not None:
                raise self._fault
            self._news.clear()
            await self._news.wait()
