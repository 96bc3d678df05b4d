"""The scripted worker's side of runs in a session: each is played as if it were a call of its own."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from envtrio.v1 import env_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Play = Callable[[bytes, Any], Awaitable[None]]


class Aborted(Exception):
    """The script ends the run with a status."""

    def __init__(self, code: grpc.StatusCode, message: str, details: bytes) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


class RunContext:
    """What a handler of Run has of its call."""

    def __init__(self, runs: ScriptedRuns, opening: pb.OpenRun) -> None:
        self.credit = opening.credit_bytes
        self.more_credit = asyncio.Event()
        self._runs = runs
        self._number = opening.run_number
        self._admitted = False
        timeout = opening.timeout_millis / 1000 if opening.HasField("timeout_millis") else None
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def time_remaining(self) -> float | None:
        return None if self._deadline is None else self._deadline - time.monotonic()

    async def send_initial_metadata(self, _: object) -> None:
        if not self._admitted:
            self._admitted = True
            await self._runs.send(run_admitted=pb.RunAdmitted(run_number=self._number))

    async def write(self, data: bytes) -> None:
        await self.send_initial_metadata(())
        while self.credit <= 0:
            self.more_credit.clear()
            await self.more_credit.wait()
        self.credit -= len(data)
        await self._runs.send(run_data=pb.RunData(run_number=self._number, data=data))

    async def abort(self, code: grpc.StatusCode, message: str, details: Any = ()) -> NoReturn:
        raise Aborted(code, message, details[0][1] if details else b"")


class ScriptedRuns:
    """The runs of one stream.

    Args:
        play: what a worker does with a Run, given its request and its context; without it none must come.
        context: of the stream.
    """

    def __init__(self, play: Play | None, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self.numbers: list[int] = []
        self._play = play
        self._context = context
        self._writing = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()
        self._runs: dict[int, tuple[RunContext, asyncio.Task[None]]] = {}

    async def send(self, **frame: Any) -> None:
        """Send one frame, one at a time."""
        await self.write(pb.SessionResponse(**frame))

    async def write(self, message: pb.SessionResponse) -> None:
        """Send this message, one at a time. Of a run that is left in the midst of it the end is written after
        it."""
        writing = asyncio.create_task(self._write(message))
        self._writes.add(writing)
        writing.add_done_callback(self._writes.discard)
        await asyncio.shield(writing)

    async def _write(self, message: pb.SessionResponse) -> None:
        async with self._writing:
            await self._context.write(message)

    def take(self, frame: pb.SessionRequest) -> bool:
        """Whether the frame was of a run. Nonsense fails the stream."""
        match frame.WhichOneof("frame"):
            case "open_run":
                opening = frame.open_run
                assert self._play is not None, "a run came without the capability"
                assert not self.numbers or opening.run_number > self.numbers[-1], "numbers do not rise"
                self.numbers.append(opening.run_number)
                context = RunContext(self, opening)
                task = asyncio.create_task(self._carry(opening, context))
                self._runs[opening.run_number] = context, task
            case "run_credit":
                assert frame.run_credit.run_number in self.numbers
                if (run := self._runs.get(frame.run_credit.run_number)) is not None:
                    run[0].credit += frame.run_credit.credit_bytes
                    run[0].more_credit.set()
            case "leave_run":
                assert frame.leave_run.run_number in self.numbers
                if (run := self._runs.get(frame.leave_run.run_number)) is not None:
                    run[1].cancel()
            case _:
                return False
        return True

    async def close(self) -> None:
        """The stream is over."""
        for tasks in ([task for _, task in self._runs.values()], list(self._writes)):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry(self, opening: pb.OpenRun, context: RunContext) -> None:
        number = opening.run_number
        end = pb.EndRun(run_number=number)
        assert self._play is not None
        try:
            await self._play(opening.request.SerializeToString(), context)
        except Aborted as aborted:
            end.code, end.message, end.status_details = (
                aborted.code.value[0],
                aborted.message,
                aborted.details,
            )
        except asyncio.CancelledError:
            end.code, end.message = grpc.StatusCode.CANCELLED.value[0], "left"
        finally:
            del self._runs[number]
        await self.send(end_run=end)
