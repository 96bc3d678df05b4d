"""Calls EnvService through the generated stub and records all that passes.

Runs are carried by Run or in the stream of a session, which looks the same from here.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import grpc
from envtrio.v1 import delta_pb2, env_service_pb2, env_service_pb2_grpc, episode_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.helpers.history import Asked, CancelAnswered, CancelSent, Ended, History, Passed
from tests.helpers.lane_client import MAX_REQUEST_BYTES, Lane
from tests.helpers.stream_view import merged

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB = 2**20
OPTIONS = (
    ("grpc.max_receive_message_length", 65 * MIB),
    ("grpc.max_send_message_length", 65 * MIB),
    ("grpc.enable_http_proxy", 0),
    # Else a new channel shares the backoff of an older one, whose server was away.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)
GENERATION = 1
Transport: TypeAlias = Literal["run", "session"]
"""How runs are carried."""
_REQUEST_ID = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `reason` and `metadata` are those of the ErrorInfo, empty where there is none."""

    run: str
    code: str
    reason: str
    message: str
    metadata: Mapping[str, str]
    retry_seconds: float | None
    messages: list[delta_pb2.DeltaStream] = field(repr=False)

    @property
    def episode(self) -> episode_pb2.Episode:
        """What protobuf's own merge makes of a stream that ended OK."""
        assert self.code == "OK", self
        traces, _ = merged(self.messages)
        reply = self.messages[-1].reply
        return episode_pb2.Episode(head=reply.head, traces=[traces[count.trace_id] for count in reply.traces])

    @property
    def received_bytes(self) -> int:
        """Bytes of all messages."""
        return sum(message.ByteSize() for message in self.messages)


class OpenRun:
    """A run whose stream is open. Read it message by message, or to its end.

    Attributes:
        call: that of Run, or the `LaneRun` of a session.
    """

    def __init__(self, call: Any, run: str, history: History) -> None:
        self.run = run
        self.call = call
        self._history = history
        self._messages: list[delta_pb2.DeltaStream] = []

    async def next(self) -> delta_pb2.DeltaStream:
        """The next message. EOFError when the stream has ended."""
        message = await self.call.read()
        if message is grpc.aio.EOF:
            raise EOFError(f"run {self.run[:8]} ended with {await self.call.code()}")
        self._history.note(Passed, self.run, hop="client", data=message.SerializeToString())
        self._messages.append(message)
        assert isinstance(message, delta_pb2.DeltaStream)
        return message

    async def finish(self) -> Outcome:
        """Read on to the status."""
        try:
            while True:
                await self.next()
        except (EOFError, grpc.aio.AioRpcError):
            pass
        except asyncio.CancelledError:
            if not self.call.cancelled():
                raise
        code = await self.call.code()
        status = _status(await self.call.trailing_metadata())
        info = _detail(status, error_details_pb2.ErrorInfo())
        retry = _detail(status, error_details_pb2.RetryInfo())
        message = await self.call.details() or ""
        self._history.note(Ended, self.run, code=code.name, reason=info.reason, message=message[:1000])
        return Outcome(
            run=self.run,
            code=code.name,
            reason=info.reason,
            message=message,
            metadata=dict(info.metadata),
            retry_seconds=retry.retry_delay.ToTimedelta().total_seconds() if retry.ByteSize() else None,
            messages=self._messages,
        )

    async def drop(self) -> Outcome:
        """Hang up."""
        self.call.cancel()
        return await self.finish()


class StubClient:
    """Runs and cancels at `address`, recorded in `history`; `runs` are those that it named.

    Args:
        transport: how its runs are carried. Those that a session does not take are by Run.
    """

    def __init__(self, address: str, history: History, transport: Transport = "run") -> None:
        self.address = address
        self.transport: Transport = transport
        self.runs: list[str] = []
        self.asked = 0
        """How many runs it asked for."""
        self._history = history
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self.stub = env_service_pb2_grpc.EnvServiceStub(self._channel)
        self.health: Any = health_pb2_grpc.HealthStub(self._channel)  # its types know no aio channel
        self._lane: Lane | None = None
        self._lane_id = new_id()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Break the connection, and with it every open run."""
        try:
            if self._lane is not None:
                await self._lane.close()
        finally:
            await self._channel.close()

    @property
    def lane(self) -> Lane:
        """The session that carries its runs: opened with the first, and anew when its stream has ended."""
        if self._lane is None or self._lane.over:
            self._lane = Lane(self.stub, self._lane_id, 1 if self._lane is None else self._lane.epoch + 1)
        return self._lane

    @property
    def history(self) -> History:
        """What was recorded of this client's runs, by it and by the hooks."""
        return self._history.only(self.runs)

    def start(self, task: Any, *, timeout: float | None = 30.0, **fields: Any) -> OpenRun:
        """Open a run. `task` is the JSON text or what to make it of; `fields` are those of RunRequest."""
        fields = {
            "request_id": new_id(),
            "protocol_generation": GENERATION,
            "environment": "synthetic",
            "task_json": task if isinstance(task, str) else json.dumps(task),
            **fields,
        }
        run = self._named(fields["request_id"])
        self.asked += 1
        self._history.note(Asked, run)
        request = env_service_pb2.RunRequest(**fields)
        if self.transport == "session" and request.ByteSize() <= MAX_REQUEST_BYTES:
            return OpenRun(self.lane.start(request, timeout), run, self._history)
        return OpenRun(self.stub.Run(request, timeout=timeout), run, self._history)

    async def run(self, task: Any, *, timeout: float | None = 30.0, **fields: Any) -> Outcome:
        """Run to the end."""
        return await self.start(task, timeout=timeout, **fields).finish()

    async def cancel(self, run: str, **fields: Any) -> str:
        """Cancel; the outcome without its prefix, or "CODE REASON" of an error."""
        return (await self.cancel_fully(run, **fields)).removesuffix(" WORKER_LOST")

    async def cancel_fully(self, run: str, **fields: Any) -> str:
        """As `cancel`, with " WORKER_LOST" behind an outcome whose reason that is."""
        fields = {"request_id": run, "protocol_generation": GENERATION, "cause": "a test", **fields}
        named = self._named(run)
        self._history.note(CancelSent, named)
        try:
            answer = await self.stub.Cancel(env_service_pb2.CancelRequest(**fields), timeout=20)
        except grpc.aio.AioRpcError as error:
            outcome = f"{error.code().name} {reason_of(error)}"
        else:
            outcome = env_service_pb2.CancelOutcome.Name(answer.outcome).removeprefix("CANCEL_OUTCOME_")
            outcome += " WORKER_LOST" if answer.reason else ""
        self._history.note(CancelAnswered, named, outcome=outcome)
        return outcome

    async def describe(self, generation: int = GENERATION) -> env_service_pb2.DescribeResponse:
        """What is served."""
        request = env_service_pb2.DescribeRequest(protocol_generation=generation)
        answer = await self.stub.Describe(request, timeout=20)
        assert isinstance(answer, env_service_pb2.DescribeResponse)
        return answer

    async def until_serving(self, timeout: float = 30.0) -> None:
        """Wait until the server would take a run."""
        watch = self.health.Watch(health_pb2.HealthCheckRequest(), timeout=timeout, wait_for_ready=True)
        async for state in watch:
            if state.status == health_pb2.HealthCheckResponse.SERVING:
                break
        watch.cancel()

    def _named(self, request_id: str) -> str:
        # A malformed id names no run: each use of it is a story of its own.
        run = request_id if _REQUEST_ID.fullmatch(request_id) else f"malformed {new_id()}"
        if run not in self.runs:
            self.runs.append(run)
        return run


def new_id() -> str:
    """A random request_id."""
    return uuid.uuid4().hex


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """The reason of the error's ErrorInfo, or ""."""
    return str(_detail(_status(error.trailing_metadata()), error_details_pb2.ErrorInfo()).reason)


def _status(metadata: Any) -> status_pb2.Status:
    for key, value in metadata or ():
        if key == "grpc-status-details-bin":
            return status_pb2.Status.FromString(value)
    return status_pb2.Status()


def _detail(status: status_pb2.Status, detail: Any) -> Any:
    for packed in status.details:
        if packed.Unpack(detail):
            break
    return detail
