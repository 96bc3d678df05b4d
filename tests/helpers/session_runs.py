"""Runs in one stream of a session, seen frame by frame, each with the face of a call of its own."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc
from envtrio.v1 import env_service_pb2 as pb

from tests.helpers.stub_client import GENERATION, new_id, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SECONDS = 10.0
CREDIT = 256 * 1024
DETAILS_KEY = "grpc-status-details-bin"


class SessionCall:
    """One run. `frames` are the kinds of all that came of it."""

    def __init__(self, runs: SessionRuns, number: int) -> None:
        self.number = number
        self.frames: list[str] = []
        self.given = 0
        """Credit given back, which `read` does with what it returns, unless `thrifty`."""
        self.thrifty = False
        self._runs = runs
        self._data: list[bytes] = []
        self._end: grpc.aio.AioRpcError | None = None
        self._ok = False
        self._news = asyncio.Event()

    @property
    def ended(self) -> bool:
        return self._ok or self._end is not None

    @property
    def unread(self) -> int:
        """Bytes that came and were not read."""
        return sum(map(len, self._data))

    async def read(self) -> Any:
        """The next message; grpc.aio.EOF behind the last one; AioRpcError as a call's."""
        while not self._data and not self.ended:
            await self._wait()
        if self._data:
            data = self._data.pop(0)
            if not self.thrifty:
                self.credit(len(data))
            return data
        if self._end is not None:
            raise self._end
        return grpc.aio.EOF

    async def initial_metadata(self) -> None:
        """Return when the run was admitted, or has ended."""
        while "run_admitted" not in self.frames and not self.ended:
            await self._wait()

    async def until_ended(self) -> None:
        """Return when the end came."""
        while not self.ended:
            await self._wait()

    async def code(self) -> grpc.StatusCode:
        await self.until_ended()
        return self._end.code() if self._end is not None else grpc.StatusCode.OK

    async def details(self) -> str | None:
        await self.until_ended()
        return self._end.details() if self._end is not None else ""

    async def trailing_metadata(self) -> Any:
        await self.until_ended()
        return self._end.trailing_metadata() if self._end is not None else ()

    def cancel(self) -> None:
        """Leave it."""
        self._runs.put(leave_run=pb.LeaveRun(run_number=self.number))

    def credit(self, count: int) -> None:
        """Allow so many bytes more."""
        if not self.ended:
            self.given += count
            self._runs.put(run_credit=pb.RunCredit(run_number=self.number, credit_bytes=count))

    def take(self, kind: str, frame: Any) -> None:
        """A frame of it came."""
        assert not self.ended, f"{kind} came after the end"
        assert kind != "run_admitted" or not self.frames, f"run_admitted came after {self.frames}"
        self.frames.append(kind)
        if kind == "run_data":
            self._data.append(frame.data)
        elif kind == "end_run" and frame.code:
            codes: Mapping[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
            trailing = grpc.aio.Metadata(
                *([(DETAILS_KEY, frame.status_details)] * bool(frame.status_details))
            )
            self.broke(grpc.aio.AioRpcError(codes[frame.code], grpc.aio.Metadata(), trailing, frame.message))
        elif kind == "end_run":
            self._ok = True
        self._news.set()

    def broke(self, error: grpc.aio.AioRpcError) -> None:
        """It ended so."""
        self._end = self._end or error
        self._news.set()

    async def _wait(self) -> None:
        self._news.clear()
        await asyncio.wait_for(self._news.wait(), 2 * SECONDS)


class SessionRuns:
    """A session whose stream carries runs.

    Attributes:
        messages: the frames of each message that came, as (kind, run number).
        reading: while it is not set, the stream is not read.
    """

    def __init__(self, stub: Any, *, session_id: str = "", epoch: int = 1) -> None:
        self.session_id = session_id or new_id()
        self.messages: list[list[tuple[str, int]]] = []
        self.opened: pb.SessionOpened | None = None
        self.answers: dict[str, str] = {}
        self.reading = asyncio.Event()
        self.reading.set()
        self._calls: dict[int, SessionCall] = {}
        self._numbers = 0
        self._out: list[pb.SessionRequest] = []
        self._wake = asyncio.Event()
        self.call: Any = stub.Session()
        self.put(open=pb.SessionOpen(session_id=self.session_id, epoch=epoch, protocol_generation=GENERATION))
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]

    def put(self, **frame: Any) -> None:
        """A frame that leaves with what else is put in this step, in one message."""
        self._out.append(pb.SessionRequest(**frame))
        self._wake.set()

    def start(self, data: bytes, *, timeout: float | None = 20.0, credit: int = CREDIT) -> SessionCall:
        """Open a run whose RunRequest is `data`."""
        self._numbers += 1
        call = self._calls[self._numbers] = SessionCall(self, self._numbers)
        opening = pb.OpenRun(
            run_number=call.number,
            request=pb.RunRequest.FromString(data),
            timeout_millis=None if timeout is None else int(timeout * 1000),
            credit_bytes=credit,
        )
        self.put(open_run=opening)
        return call

    async def status(self) -> tuple[str, str]:
        """Wait for the stream's end; its code and reason."""
        await asyncio.wait_for(asyncio.wait({self._tasks[1]}), SECONDS)
        error = self._tasks[1].result()
        return (error.code().name, reason_of(error)) if error is not None else ("OK", "")

    def drop(self) -> None:
        """Break it off."""
        self.call.cancel()

    async def close(self) -> None:
        """Break it off, and wait for that."""
        self.drop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await self._wake.wait()
                self._wake.clear()
                out, self._out = self._out, []
                for start in range(0, len(out), 1_000):
                    first, *more = out[start : start + 1_000]
                    first.more.extend(more)
                    await self.call.write(first)

    async def _read(self) -> grpc.aio.AioRpcError | None:
        error = None
        try:
            while True:
                await self.reading.wait()
                message = await self.call.read()
                if not isinstance(message, pb.SessionResponse):
                    break
                self._take(message)
        except grpc.aio.AioRpcError as broken:
            error = broken
        except asyncio.CancelledError:
            error = _unavailable("the stream was dropped")
        for call in self._calls.values():
            if not call.ended:
                call.broke(error or _unavailable("the stream ended"))
        return error

    def _take(self, message: pb.SessionResponse) -> None:
        kinds: list[tuple[str, int]] = []
        for frame in (message, *message.more):
            kind = frame.WhichOneof("frame") or ""
            content = getattr(frame, kind)
            number = getattr(content, "run_number", 0)
            assert (kind, number) == ("end_run", number) or ("end_run", number) not in kinds
            kinds.append((kind, number))
            if number:
                self._calls[number].take(kind, content)
            elif kind == "opened":
                self.opened = content
            for answer in content.answers if kind == "confirm_answers" else ():
                self.answers[answer.request_id] = pb.ConfirmOutcome.Name(answer.outcome)
        for number in {number for kind, number in kinds if kind == "end_run"}:
            assert ("run_data", number) not in kinds, "an end in the message of the data before it"
        self.messages.append(kinds)


def start(runs: SessionRuns, run: str, **options: Any) -> SessionCall:
    """Open a run of the scripted worker's."""
    request = pb.RunRequest(
        request_id=run, protocol_generation=GENERATION, environment="scripted", task_json="{}"
    )
    return runs.start(request.SerializeToString(), **options)


async def until(true: Callable[[], bool]) -> None:
    """Wait for it, one event-loop turn at a time."""
    async with asyncio.timeout(SECONDS):
        while not true():  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0)


def _unavailable(details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details
    )
