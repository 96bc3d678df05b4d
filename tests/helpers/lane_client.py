"""A session that carries runs, by the plain rules of PROTOCOL.md, and strict about what the server sends."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
from envtrio.v1 import env_service_pb2 as pb

from tests.helpers.guarantee import GuaranteeBroken, broke
from tests.helpers.lane_run import CREDIT, LaneRun

CAPABILITY: Final = "session-runs"
MAX_REQUEST_BYTES: Final = 1024 * 1024
"""Most bytes of a request in a session. A larger one is sent by Run."""
MAX_MORE: Final = 1_024
_FRAMES: Final = "SessionFrames"
_MAX_FRAMES: Final = 1_000
_MAX_BYTES: Final = 256 * 1024


class Lane:
    """A session's stream that carries runs, which are all that it is for.

    Attributes:
        reading: while it is not set the stream is not read, which no client should do.
        over: whether the stream has ended; every run of it has.
    """

    def __init__(self, stub: Any, session_id: str, epoch: int) -> None:
        self.session_id: Final = session_id
        self.epoch: Final = epoch
        self.over = False
        self.reading: Final = asyncio.Event()
        self.reading.set()
        self.broken: GuaranteeBroken | None = None
        self._runs: dict[int, LaneRun] = {}
        self._last = 0
        self._leaving = False
        self._call: Any = stub.Session()
        self._out: list[pb.SessionRequest] = []
        self._due: Final = asyncio.Event()
        self._opened: Final = asyncio.Event()
        opening = pb.SessionOpen(session_id=session_id, epoch=epoch, protocol_generation=1)
        self._tasks: Final = (
            asyncio.create_task(self._read()),
            asyncio.create_task(self._write(pb.SessionRequest(open=opening))),
        )

    def start(self, request: pb.RunRequest, timeout: float | None = None) -> LaneRun:
        """Open a run; it leaves once the session is opened. `timeout` in seconds."""
        assert not self.over, "the stream has ended; open the session's next one"
        self._last += 1
        run = self._runs[self._last] = LaneRun(self._last, request.request_id, self.put)
        opening = pb.OpenRun(run_number=run.number, request=request, credit_bytes=CREDIT)
        if timeout is not None:
            opening.timeout_millis = int(timeout * 1000)
            run.expire_in(timeout)
        self.put(open_run=opening)
        return run

    def put(self, **frame: Any) -> None:
        """Send a frame."""
        if not self.over:
            self._out.append(pb.SessionRequest(**frame))
            self._due.set()

    async def goodbye(self) -> str:
        """End the session in good order; the name of its status."""
        self._leaving = True
        self.put(goodbye=pb.SessionGoodbye())
        await self.ended()
        code: grpc.StatusCode = await self._call.code()
        return code.name

    async def ended(self) -> None:
        """Wait for the end of the stream."""
        await asyncio.wait(self._tasks[:1])

    async def close(self) -> None:
        """Break it off, and every run that is open. GuaranteeBroken if the server broke a promise."""
        self._call.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.broken is not None:
            raise self.broken

    async def _write(self, opening: pb.SessionRequest) -> None:
        try:
            await self._call.write(opening)
            await self._opened.wait()
            while True:
                await self._due.wait()
                self._due.clear()
                while self._out:
                    await self._call.write(self._next())
                if self._leaving:
                    await self._call.done_writing()
                    return
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the reader hears why

    def _next(self) -> pb.SessionRequest:
        """What waits, as one message, if it is not too much."""
        message, count = self._out[0], 1
        size = message.ByteSize()
        while count < min(len(self._out), _MAX_FRAMES) and size < _MAX_BYTES:
            message.more.append(self._out[count])
            size += self._out[count].ByteSize()
            count += 1
        del self._out[:count]
        return message

    async def _read(self) -> None:
        code, said, fault = grpc.StatusCode.CANCELLED, "the stream was broken off", None
        try:
            while isinstance(message := await self._call.read(), pb.SessionResponse):
                self._take(message)
                await self.reading.wait()
            code, said = grpc.StatusCode.UNAVAILABLE, "the stream has ended"
        except grpc.aio.AioRpcError as error:
            code, said = grpc.StatusCode.UNAVAILABLE, f"{error.code().name}: {error.details()}"
        except GuaranteeBroken as error:
            code, said, fault = grpc.StatusCode.INTERNAL, str(error), error
            self.broken = error
            self._call.cancel()
        except asyncio.CancelledError:
            pass  # by `close`, or as the channel was closed
        finally:
            self.over = True
            self._tasks[1].cancel()  # it would wait for ever for something to say
            for run in self._runs.values():
                run.stream_over(code, said, fault or EOFError(f"run {run.number} was not ended: {said}"))
            self._runs.clear()

    def _take(self, message: pb.SessionResponse) -> None:
        if len(message.more) > MAX_MORE:
            broke(_FRAMES, "", f"`more` has {len(message.more)} frames")
        with_data = set[int]()
        for frame in (message, *message.more):
            kind = frame.WhichOneof("frame")
            if frame is not message and frame.more:
                broke(_FRAMES, "", "a frame in `more` has `more`")
            if not self._opened.is_set():
                if kind != "opened" or CAPABILITY not in frame.opened.capabilities:
                    broke(_FRAMES, "", f"{CAPABILITY} should have been offered, {frame} came")
                self._opened.set()
                continue
            if kind not in ("run_admitted", "run_data", "end_run"):
                broke(_FRAMES, "", f"{kind} came, which nobody asked for")
            content = getattr(frame, kind)
            if (run := self._runs.get(content.run_number)) is None:
                broke("EndedOnce", "", f"{kind} came of run {content.run_number}, which is not open")
            run.take(kind, content)
            if kind == "run_data":
                with_data.add(run.number)
            elif kind == "end_run":
                if content.code == 0 and run.number in with_data:
                    broke("EndBehindItsReply", run.run, "both came in one message")
                del self._runs[run.number]
