"""Runs in one stream of a worker's session: nothing is sent or read but when a test says so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

import grpc
from envtrio.v1 import delta_pb2, env_service_pb2_grpc
from envtrio.v1 import env_service_pb2 as pb
from google.rpc import error_details_pb2, status_pb2

from tests.helpers.history import Asked, Ended, Passed
from tests.helpers.session_stream import SessionStream
from tests.helpers.stub_client import GENERATION, Outcome, new_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.worker_server import WorkerSubject

CODES = {code.value[0]: code.name for code in grpc.StatusCode}
ENOUGH = 2**40
"""Credit that is never used up."""


class StreamRun:
    """One run, as far as its frames were read."""

    def __init__(self, number: int, run: str) -> None:
        self.number = number
        self.run = run
        self.admitted = False
        self.data: list[bytes] = []
        self.end: pb.EndRun | None = None

    @property
    def size(self) -> int:
        """Bytes of data that have come."""
        return sum(len(data) for data in self.data)

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        assert self.end is not None, "it has not ended"
        status = status_pb2.Status.FromString(self.end.status_details)
        assert (self.end.code == 0) == (status.code == 0)
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        for packed in status.details:
            assert packed.Unpack(info) or packed.Unpack(retry)
        return Outcome(
            run=self.run,
            code=CODES[self.end.code],
            reason=info.reason,
            message=self.end.message,
            metadata=dict(info.metadata),
            retry_seconds=retry.retry_delay.ToTimedelta().total_seconds() if retry.ByteSize() else None,
            messages=[delta_pb2.DeltaStream.FromString(data) for data in self.data],
        )


class RunStream:
    """A stream and its runs, whose frames are checked for their order and recorded.

    Args:
        channel: what it goes over; None: that of the subject's client.
    """

    def __init__(self, subject: WorkerSubject, channel: grpc.aio.Channel | None = None) -> None:
        stub = None if channel is None else env_service_pb2_grpc.EnvServiceStub(channel)
        self.session = subject.stream() if stub is None else SessionStream(stub, subject.history)
        self.runs: dict[int, StreamRun] = {}
        self.messages: list[pb.SessionResponse] = []
        """All that was read, behind the first."""
        self._client = subject.client
        self._history = subject.history
        self._frames: list[pb.SessionRequest] = []

    async def open(self, session_id: str = "e" * 32, epoch: int = 1) -> Self:
        """Open the session."""
        await self.session.open(session_id, epoch)
        return self

    # What leaves with the next `send`.

    def start(
        self, task: Any, *, credit: int = ENOUGH, millis: int | None = 30_000, number: int = 0, **fields: Any
    ) -> StreamRun:
        """Open a run. `task` is what to make JSON text of; `fields` are those of RunRequest."""
        fields = {
            "request_id": new_id(),
            "protocol_generation": GENERATION,
            "environment": "synthetic",
            "task_json": task if isinstance(task, str) else json.dumps(task),
            **fields,
        }
        number = number or max(self.runs, default=0) + 1
        run = self.runs[number] = StreamRun(number, self._client._named(fields["request_id"]))
        self._client.asked += 1
        self._history.note(Asked, run.run)
        opening = pb.OpenRun(
            run_number=number,
            request=pb.RunRequest(**fields),
            timeout_millis=millis,
            credit_bytes=credit,
        )
        return self.put(run, open_run=opening)

    def credit(self, run: StreamRun, size: int) -> None:
        """Allow more."""
        self.put(run, run_credit=pb.RunCredit(run_number=run.number, credit_bytes=size))

    def leave(self, run: StreamRun) -> None:
        """Give it up."""
        self.put(run, leave_run=pb.LeaveRun(run_number=run.number))

    def put(self, run: StreamRun, **frame: Any) -> StreamRun:
        """Any frame."""
        self._frames.append(pb.SessionRequest(**frame))
        return run

    async def send(self) -> None:
        """Send all that was put, as one message."""
        if self._frames:
            message, *more = self._frames
            self._frames = []
            message.more.extend(more)
            await self.session.send_message(message)

    # What has come.

    async def until(self, reached: Callable[[], bool]) -> None:
        """Send, and read until it is reached."""
        await self.send()
        while not reached():
            message = await self.session.read()
            assert message is not None, "the stream has ended"
            self._take(message)

    async def finish(self, *runs: StreamRun) -> list[Outcome]:
        """Send, and read until these runs have ended."""
        await self.until(lambda: all(run.end is not None for run in runs))
        return [run.outcome for run in runs]

    async def run(self, task: Any, **fields: Any) -> Outcome:
        """Carry one run to its end."""
        [outcome] = await self.finish(self.start(task, **fields))
        return outcome

    async def status(self) -> tuple[str, str]:
        """Send, and read to the end of the stream; its code and reason."""
        await self.send()
        try:
            while (message := await self.session.read()) is not None:
                self._take(message)
        except grpc.aio.AioRpcError:
            pass
        finally:
            self._over()
        return await self.session.status()

    async def goodbye(self) -> tuple[str, str]:
        """Say it, close this side, and read to the end."""
        await self.send()
        await self.session.send(goodbye=pb.SessionGoodbye())
        await self.session.call.done_writing()
        return await self.status()

    def drop(self) -> None:
        """Break the stream off."""
        self.session.drop()
        self._over()

    def _over(self) -> None:
        for run in self.runs.values():
            if run.end is None:
                code: int = grpc.StatusCode.UNKNOWN.value[0]
                details = status_pb2.Status(code=code).SerializeToString()
                run.end = pb.EndRun(run_number=run.number, code=code, status_details=details)
                self._history.note(Ended, run.run, code="STREAM_OVER")

    def _take(self, message: pb.SessionResponse) -> None:
        self.messages.append(message)
        before = {number for number, run in self.runs.items() if run.end is None}
        with_data = set[int]()
        for frame in (message, *message.more):
            assert frame is message or not frame.more
            match frame.WhichOneof("frame"):
                case "run_admitted":
                    run = self._open(frame.run_admitted.run_number)
                    assert not run.admitted
                    run.admitted = True
                case "run_data":
                    run = self._open(frame.run_data.run_number)
                    assert run.admitted, "data of a run that was not admitted"
                    assert run.number not in with_data, "one message is on its way at most"
                    with_data.add(run.number)
                    run.data.append(frame.run_data.data)
                    self._history.note(Passed, run.run, hop="client", data=frame.run_data.data)
                case "end_run":
                    run = self._open(frame.end_run.run_number)
                    assert run.number in before
                    run.end = frame.end_run
                    if run.end.code == 0:
                        assert run.number not in with_data, "a reply and its OK in one message"
                    outcome = run.outcome
                    self._history.note(Ended, run.run, code=outcome.code, reason=outcome.reason)
                case other:
                    assert other == "confirm_answers"

    def _open(self, number: int) -> StreamRun:
        run = self.runs[number]
        assert run.end is None, f"run {number} has ended already"
        return run
