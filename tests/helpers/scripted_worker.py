"""A real worker server on port 0 that does what a script says, and registers at a broker if it is told to.

Calls are recorded. A Run without a script, or a script that was not played to its end, fails the test when
the worker stops.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import grpc
from envtrio.v1 import env_service_pb2, registry_service_pb2
from google.rpc import error_details_pb2, status_pb2

from tests.helpers.lease import Lease
from tests.helpers.scripted_confirms import ScriptedConfirms
from tests.helpers.stub_client import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PATIENCE_SECONDS: Final = 10.0
GENERATION: Final = 1
BIG = 256 * 2**20


@dataclass(frozen=True)
class Send:
    """Send one message's bytes, as they are; `lost`: as the last thing, and it may not be possible."""

    data: bytes
    lost: bool = False


@dataclass(frozen=True)
class Admit:
    """Send the initial metadata."""


@dataclass(frozen=True)
class Reach:
    """Tell the test that the script has come here."""

    event: asyncio.Event


@dataclass(frozen=True)
class Wait:
    """Wait until the test says so."""

    event: asyncio.Event


@dataclass(frozen=True)
class WaitCancel:
    """Wait until a Cancel of this run has come."""


@dataclass(frozen=True)
class Hang:
    """Wait until the caller is gone. Counts as played to its end then."""


@dataclass(frozen=True)
class Abort:
    """End with a status. Without a reason it looks as if gRPC had made it."""

    code: grpc.StatusCode
    reason: str = ""
    message: str = "scripted"
    metadata: Mapping[str, str] = field(default_factory=dict)

    def details(self) -> tuple[tuple[str, bytes], ...]:
        """Trailing metadata."""
        if not self.reason:
            return ()
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        info = error_details_pb2.ErrorInfo(domain="envtrio", reason=self.reason, metadata=dict(self.metadata))
        status.details.add().Pack(info)
        return (("grpc-status-details-bin", status.SerializeToString()),)


Step: TypeAlias = Send | Admit | Reach | Wait | WaitCancel | Hang | Abort
CancelLine: TypeAlias = "env_service_pb2.CancelOutcome.ValueType | Abort | Hang"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass
class RecordedRun:
    """One Run call as the worker saw it."""

    data: bytes
    time_remaining: float | None
    sent: int = 0
    """Messages whose write returned."""
    ended: bool = False
    played: bool = False
    """The script came to its end."""

    @property
    def request(self) -> env_service_pb2.RunRequest:
        """The request, decoded."""
        return env_service_pb2.RunRequest.FromString(self.data)


class ScriptedWorker:
    """Serves Run, Cancel and Session; an async context manager.

    Args:
        environments: what it says it serves when it registers.
        address: where it says it is, if not where it is.
    """

    carries_runs = False
    """Whether it has the capability session-runs, in what it is asked and in its sessions."""

    def __init__(
        self,
        *environments: str,
        slots: int = 4,
        late_cancel_seconds: float = 60.0,
        instance: str = "",
        address: str = "",
        local_slot: str = "",
    ) -> None:
        self.instance: Final = instance or uuid.uuid4().hex
        self.registered_as = self.instance
        """Instance that Describe tells: that of the last registration, unless the test sets it."""
        self.described = 0
        """How often it was asked for it."""
        self.mute: asyncio.Event | None = None
        """Describe waits for it."""
        self.environments: Final = environments or ("scripted",)
        self.slots: Final = slots
        self.late_cancel_seconds: Final = late_cancel_seconds
        self.local_slot: Final = local_slot
        self.runs: dict[str, RecordedRun] = {}
        self.cancels: list[env_service_pb2.CancelRequest] = []
        self.cancel_lines: dict[str, list[CancelLine]] = {}
        """Answers to cancels, by request_id, in turn; ABORTED where there is none left."""
        self.address = address
        self.sessions = ScriptedConfirms(self.instance, lambda: self._changed.set())
        self._scripts: dict[str, tuple[Step, ...]] = {}
        self._optional: set[str] = set()
        self._faults: list[str] = []
        self._leases: list[Lease] = []
        self._changed = asyncio.Event()
        # It may send what is too large.
        self._server: Final = grpc.aio.server(options=(*OPTIONS, ("grpc.max_send_message_length", BIG)))

    async def __aenter__(self) -> Self:
        handlers = {
            "Run": grpc.unary_stream_rpc_method_handler(self._run),
            "Cancel": grpc.unary_unary_rpc_method_handler(
                self._cancel,
                env_service_pb2.CancelRequest.FromString,
                env_service_pb2.CancelResponse.SerializeToString,
            ),
            "Describe": grpc.unary_unary_rpc_method_handler(
                self._describe,
                env_service_pb2.DescribeRequest.FromString,
                env_service_pb2.DescribeResponse.SerializeToString,
            ),
            "Session": self.sessions.handler(self._run if self.carries_runs else None),
        }
        service = grpc.method_handlers_generic_handler("envtrio.v1.EnvService", handlers)
        self._server.add_generic_rpc_handlers((service,))
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.address = self.address or f"127.0.0.1:{port}"
        self.port = port
        await self._server.start()
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        self.sessions.break_off()
        for lease in self._leases:
            await lease.close()
        await self._server.stop(0)
        unplayed = [
            run[:8]
            for run in self._scripts
            if not (self.runs[run].played if run in self.runs else run in self._optional)
        ]
        if kind is None and (self._faults or unplayed):
            raise AssertionError(f"faults {self._faults}, scripts not played to their end {unplayed}")

    def script(self, request_id: str, *steps: Step, optional: bool = False) -> None:
        """What happens when that run comes, which it must unless `optional`. After the last step it is OK."""
        self._scripts[request_id] = steps
        self._optional.update({request_id} if optional else ())

    async def register(self, broker: str, **fields: Any) -> Lease:
        """Join the broker's pool, and wait until the broker has dialled back, if it is to be found at the
        address. `fields` replace those of the hello."""
        lease = Lease(grpc.aio.insecure_channel(broker, options=OPTIONS))
        self._leases.append(lease)
        hello, described = self.hello(**fields), self.described
        self.registered_as = hello.instance
        await lease.send(hello=hello)
        lease.registered = (await lease.read()).registered
        if hello.address == f"127.0.0.1:{self.port}":
            await self.until(lambda: self.described > described)
            await lease.dialled_back(hello.instance)
        return lease

    def hello(self, **fields: Any) -> registry_service_pb2.WorkerHello:
        """What it says of itself."""
        described = [env_service_pb2.EnvironmentDescription(name=name) for name in self.environments]
        return registry_service_pb2.WorkerHello(
            **{
                "protocol_generation": GENERATION,
                "version": "0.1.0",
                "instance": self.instance,
                "address": self.address,
                "environments": described,
                "max_concurrent_runs": self.slots,
                "late_cancel_seconds": self.late_cancel_seconds,
                "local_slot": self.local_slot,
                **fields,
            }
        )

    async def until(self, true: Callable[[], object]) -> None:
        """Wait until something recorded here makes `true` so."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    async def crash(self) -> None:
        """Drop every connection at once and serve no more."""
        await self._server.stop(0)

    async def _describe(self, _: object, context: Context) -> env_service_pb2.DescribeResponse:
        """Whoever asks at this address finds what it last registered as."""
        self.described += 1
        self._changed.set()
        if self.mute is not None:
            await self.mute.wait()
        return env_service_pb2.DescribeResponse(
            protocol_generation=GENERATION,
            role="worker",
            instance=self.registered_as,
            capabilities=self.sessions.capabilities,
        )

    async def _run(self, data: bytes, context: Context) -> None:
        run = RecordedRun(data, context.time_remaining())
        request_id = run.request.request_id
        self.runs[request_id] = run
        self._changed.set()
        steps = self._scripts.get(request_id)
        if steps is None:
            self._faults.append(f"run {request_id[:8]} has no script")
            await context.abort(grpc.StatusCode.UNKNOWN, "no script")
        try:
            for index, step in enumerate(steps):
                then = steps[index + 1] if index + 1 < len(steps) else None
                # Whoever has got what comes before a Hang may leave before its write returns here.
                sent_last = isinstance(step, Send | Admit) and isinstance(then, Hang)
                if sent_last or isinstance(step, Hang | Abort):
                    run.played = True
                if isinstance(step, Send) and step.lost:
                    run.played = True
                await self._step(step, run, context)
            run.played = True
        finally:
            run.ended = True
            self._changed.set()

    async def _step(self, step: Step, run: RecordedRun, context: Context) -> None:
        match step:
            case Send(data):
                await context.write(data)
                run.sent += 1
                self._changed.set()
            case Admit():
                await context.send_initial_metadata(())
            case Reach(event):
                event.set()
            case Wait(event):
                await asyncio.wait_for(event.wait(), PATIENCE_SECONDS)
            case WaitCancel():
                await self.until(lambda: any(c.request_id == run.request.request_id for c in self.cancels))
            case Hang():
                await asyncio.Event().wait()
            case Abort(code, _, message):
                await context.abort(code, message, step.details())

    async def _cancel(
        self, request: env_service_pb2.CancelRequest, context: Context
    ) -> env_service_pb2.CancelResponse:
        self.cancels.append(request)
        self._changed.set()
        lines = self.cancel_lines.get(request.request_id)
        line = lines.pop(0) if lines else env_service_pb2.CANCEL_OUTCOME_ABORTED
        if isinstance(line, Abort):
            await context.abort(line.code, line.message, line.details())
        if isinstance(line, Hang):
            await asyncio.Event().wait()
        return env_service_pb2.CancelResponse(outcome=line)  # type: ignore[arg-type]
