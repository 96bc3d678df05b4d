"""The runs that one stream of a session carries."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from envtrio.v1 import errors_pb2

from env_worker.entrance import fault, log_refusal
from env_worker.request import BIG_REQUEST_BYTES
from env_worker.session_frames import invalid, run_ended
from env_worker.session_run import SessionRun
from env_worker.status import Refusal

if TYPE_CHECKING:
    from envtrio.v1 import env_service_pb2 as pb

    from env_worker.entrance import Entrance
    from env_worker.run import RunSpec
    from env_worker.session_outbox import Outbox

CAPABILITY: Final = "session-runs"
MAX_OPEN_BYTES: Final = 1024 * 1024
"""Most bytes of a request in a session: a larger one would hold up the other runs."""
MAX_READS: Final = 4
"""Most large requests of a stream that are read, each in a thread, at a time."""


class SessionRuns:
    """Opens, feeds and gives up runs as a stream's frames say. For one event loop.

    Each that was opened gets exactly one end in the outbox, and is forgotten then.
    """

    def __init__(self, entrance: Entrance, outbox: Outbox) -> None:
        self._entrance: Final = entrance
        self._outbox: Final = outbox
        self._runs: Final[dict[int, SessionRun]] = {}
        self._last = -1
        self._reads: Final[set[asyncio.Task[None]]] = set()
        self._reading: Final = asyncio.Semaphore(MAX_READS)

    async def open(self, frame: pb.OpenRun) -> int:
        """Open a run; the bytes of its request. Waits only while too many large requests are read. Refusal,
        and then nothing is opened, if its number is no good; what is wrong with the run itself is said by its
        end."""
        number = frame.run_number
        if number <= self._last:
            raise invalid(
                f"run_number {number} comes after {self._last} in this stream; give each run a higher one",
                "open_run.run_number",
            )
        self._last = number
        run = self._runs[number] = SessionRun(number, frame.credit_bytes, self._outbox, self._over)
        request, size = frame.request, frame.request.ByteSize()
        seconds = frame.timeout_millis / 1000 if frame.HasField("timeout_millis") else None
        deadline = self._entrance.deadline(seconds)
        if size > MAX_OPEN_BYTES:
            run.end(_too_large(size))
        elif size <= BIG_REQUEST_BYTES:
            try:
                self._admit(run, self._entrance.read(request, deadline), size)
            except Refusal as refusal:
                run.end(refusal)
            except Exception as error:
                run.end(fault(error))
        else:
            await self._reading.acquire()
            # In a task of its own, so that what the stream says meanwhile of this run and others is heard.
            task = asyncio.create_task(self._read(run, request, deadline, size))
            self._reads.add(task)
            task.add_done_callback(self._was_read)
        return size

    def credit(self, frame: pb.RunCredit) -> None:
        """Allow more of a run. Refusal if it was never opened; nothing if it has ended."""
        if (run := self._opened(frame.run_number, "run_credit")) is not None:
            run.credit(frame.credit_bytes)

    def leave(self, frame: pb.LeaveRun) -> None:
        """Give a run up. Refusal if it was never opened; nothing if it has ended."""
        if (run := self._opened(frame.run_number, "leave_run")) is not None:
            self._give_up(run)

    def give_up(self) -> None:
        """Give all of them up: the stream is over. At once, with no await."""
        for task in self._reads:
            task.cancel()
        for run in tuple(self._runs.values()):
            self._give_up(run)

    def _give_up(self, run: SessionRun) -> None:
        if run.run is not None:
            self._entrance.caller_gone(run.run)
        else:  # its request is being read
            run.end(_left(run.number))

    async def _read(self, run: SessionRun, request: pb.RunRequest, deadline: float | None, size: int) -> None:
        try:
            self._admit(run, await asyncio.to_thread(self._entrance.read, request, deadline), size)
        except Refusal as refusal:
            run.end(refusal)
        except Exception as error:
            run.end(fault(error))

    def _was_read(self, task: asyncio.Task[None]) -> None:
        self._reads.discard(task)
        self._reading.release()

    def _admit(self, run: SessionRun, spec: RunSpec, size: int) -> None:
        if run.port is not None:  # it was not left while it was read
            run.run = self._entrance.admit(spec, run.port, size)

    def _over(self, run: SessionRun, ending: Refusal | None) -> None:
        del self._runs[run.number]
        if ending is not None:
            log_refusal(ending)
        self._outbox.put(run_ended(run.number, ending))

    def _opened(self, number: int, frame: str) -> SessionRun | None:
        if number > self._last:
            raise invalid(
                f"`{frame}` of run_number {number}, but the last that was opened in this stream is "
                f"{self._last}; open it first",
                f"{frame}.run_number",
            )
        return self._runs.get(number)


def _too_large(size: int) -> Refusal:
    return Refusal(
        errors_pb2.ERROR_REASON_MESSAGE_TOO_LARGE,
        f"the request of open_run has {size} bytes, the limit in a session is {MAX_OPEN_BYTES}; send this "
        "run by Run",
        field="open_run.request",
        value=size,
        limit=MAX_OPEN_BYTES,
    )


def _left(number: int) -> Refusal:
    return Refusal(
        errors_pb2.ERROR_REASON_CALLER_LOST,
        f"run_number {number} was left while its request was read; nothing of it has begun",
    )
