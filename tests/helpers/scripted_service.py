"""A real server on port 0 that serves EnvService from scripts, for tests of the clients.

It runs in threads, so that it serves clients of any kind, also those that block. Calls are recorded; a Run
without a script, or a script that no Run used, fails the test when the service stops.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc
from envtrio.v1.env_service_pb2 import (
    CancelOutcome,
    CancelRequest,
    CancelResponse,
    DescribeRequest,
    DescribeResponse,
    RunRequest,
    SessionRequest,
)
from grpc_health.v1 import health, health_pb2_grpc

from tests.helpers.scripted_end import End
from tests.helpers.scripted_lane import LaneLine, ScriptedLanes, is_lane
from tests.helpers.scripted_session import ScriptedSession, SessionLine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from envtrio.v1.delta_pb2 import DeltaStream

_PATIENCE_SECONDS: Final = 20.0
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 65 * 1024 * 1024),
    ("grpc.max_send_message_length", 65 * 1024 * 1024),
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True)
class Send:
    """Send one message, as it is."""

    message: DeltaStream | bytes


@dataclass(frozen=True)
class Reach:
    """Tell the test that the script has come here."""

    event: threading.Event


@dataclass(frozen=True)
class Wait:
    """Wait until the test says so."""

    event: threading.Event


@dataclass(frozen=True)
class Hang:
    """Wait until the caller is gone."""


Step: TypeAlias = Send | Reach | Wait | Hang | End
CancelLine: TypeAlias = CancelOutcome.ValueType | End | Wait


@dataclass(frozen=True)
class _Script:
    steps: tuple[Step, ...]
    optional: bool


class ScriptedService:
    """Serves EnvService and Health from scripts; a context manager.

    A Run takes the oldest script under its task's "script" (default ""). A Cancel takes the next cancel line,
    and ABORTED when there is none. With `sessions` it also serves the sessions of clients, as
    `ScriptedSession` says; with `carries` the lanes of asynchronous ones carry runs, as `ScriptedLanes` says.
    Without it they do not; with neither it does not know the method.
    """

    def __init__(
        self,
        late_cancel_seconds: float = 60.0,
        port: int = 0,
        *,
        sessions: bool = False,
        carries: bool = False,
    ) -> None:
        self.description = DescribeResponse(
            protocol_generation=1, version="0.1.0", role="worker", late_cancel_seconds=late_cancel_seconds
        )
        self.runs: list[RunRequest] = []
        self.run_timeouts: list[float | None] = []
        self.cancels: list[CancelRequest] = []
        self.describes = 0
        self.peers: set[str] = set()
        self.sessions = ScriptedSession(late_cancel_seconds) if sessions else None
        self.lanes = ScriptedLanes(self.run, usual=LaneLine() if carries else LaneLine(capabilities=()))
        self.knows_sessions = sessions or carries
        self._scripts: dict[str, deque[_Script]] = {}
        self._cancel_lines: deque[CancelLine] = deque()
        self._faults: list[str] = []
        self._changed = threading.Condition()
        self._pool = ThreadPoolExecutor(32)
        self._server = grpc.server(self._pool, options=_OPTIONS)
        self._server.add_generic_rpc_handlers((_handlers(self),))
        self.health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"

    def on_run(self, *steps: Step, script: str = "", optional: bool = False) -> None:
        """What a Run gets. `optional`: it need not come."""
        self._scripts.setdefault(script, deque()).append(_Script(steps, optional))

    def on_cancel(self, *lines: CancelLine) -> None:
        """What the next Cancels get. A `Wait` comes before the line that answers."""
        self._cancel_lines.extend(lines)

    def on_session(self, *lines: SessionLine) -> None:
        """What the next Session streams get."""
        assert self.sessions is not None
        self.sessions.lines.extend(lines)

    def on_lane(self, *lines: LaneLine) -> None:
        """What the next lanes get."""
        self.lanes.lines.extend(lines)

    def serve(self, status: int) -> None:
        """Set the health to a `HealthCheckResponse.ServingStatus`."""
        self.health.set("", status)

    def wait_for_cancels(self, count: int) -> list[CancelRequest]:
        """The cancels, once there are so many."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.cancels) >= count, _PATIENCE_SECONDS):
                raise AssertionError(f"{len(self.cancels)} cancels came, {count} were expected")
            return list(self.cancels)

    def wait_for_describes(self, count: int) -> None:
        """Wait until so many were asked."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.describes >= count, _PATIENCE_SECONDS):
                raise AssertionError(f"{self.describes} describes came, {count} were expected")

    def cancelled_ids(self) -> list[str]:
        """The request_ids of the cancels, in order."""
        with self._changed:
            return [cancel.request_id for cancel in self.cancels]

    def __enter__(self) -> ScriptedService:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(0).wait(_PATIENCE_SECONDS)
        if self.sessions is not None:
            self.sessions.let_go()
        self.lanes.let_go()
        self._pool.shutdown()
        if error is None:
            self._check_used()

    def _check_used(self) -> None:
        unused = [
            f"{len(left)} scripts {name!r} were not used"
            for name, scripts in self._scripts.items()
            if (left := [script for script in scripts if not script.optional])
        ]
        if self.sessions is not None and self.sessions.lines:
            unused.append(f"{len(self.sessions.lines)} session lines were not used")
        if self.lanes.lines:
            unused.append(f"{len(self.lanes.lines)} lane lines were not used")
        if self._cancel_lines:
            unused.append(f"{len(self._cancel_lines)} cancel lines were not used")
        if problems := self._faults + unused:
            raise AssertionError("; ".join(problems))

    def run(self, request: RunRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Handler of Run."""
        name = json.loads(request.task_json).get("script", "")
        with self._changed:
            self.runs.append(request)
            self.run_timeouts.append(context.time_remaining())
            scripts = self._scripts.get(name)
            script = scripts.popleft() if scripts else None
        if script is None:
            self._faults.append(f"a Run came for which there is no script {name!r}")
            context.abort(grpc.StatusCode.INTERNAL, "no script")
            return
        gone = threading.Event()
        if not context.add_callback(gone.set):
            gone.set()
        for step in script.steps:
            if isinstance(step, Send):
                yield step.message if isinstance(step.message, bytes) else step.message.SerializeToString()
            elif isinstance(step, Reach):
                step.event.set()
            elif isinstance(step, End):
                step.abort(context)
            elif not (gone if isinstance(step, Hang) else step.event).wait(_PATIENCE_SECONDS):
                self._faults.append(f"script {name!r}: {step} was not answered in {_PATIENCE_SECONDS} s")

    def cancel(self, request: CancelRequest, context: grpc.ServicerContext) -> CancelResponse:
        """Handler of Cancel."""
        with self._changed:
            self.cancels.append(request)
            self.peers.add(context.peer())
            self._changed.notify_all()
            line = self._cancel_lines.popleft() if self._cancel_lines else None
            answer = self._cancel_lines.popleft() if isinstance(line, Wait) else line
        if isinstance(line, Wait) and not line.event.wait(_PATIENCE_SECONDS):
            self._faults.append(f"a cancel line waited for {_PATIENCE_SECONDS} s in vain")
        if isinstance(answer, End):
            answer.abort(context)
        outcome: Any = CancelOutcome.CANCEL_OUTCOME_ABORTED if answer is None else answer
        return CancelResponse(outcome=outcome)

    def session(self, requests: Iterator[SessionRequest], context: Any) -> Iterator[Any]:
        """Handler of Session."""
        if is_lane(context):
            yield from self.lanes.session(requests, context)
        elif self.sessions is not None:
            yield from self.sessions.session(requests, context)
        else:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "no sessions")

    def describe(self, _request: DescribeRequest, _context: grpc.ServicerContext) -> DescribeResponse:
        """Handler of Describe."""
        with self._changed:
            self.describes += 1
            self._changed.notify_all()
        return self.description


def _handlers(service: ScriptedService) -> grpc.GenericRpcHandler:
    # Run answers with bytes, so that a script can send what is no DeltaStream; Session likewise.
    handlers = {
        "Run": grpc.unary_stream_rpc_method_handler(service.run, RunRequest.FromString, None),
        "Cancel": grpc.unary_unary_rpc_method_handler(
            service.cancel, CancelRequest.FromString, CancelResponse.SerializeToString
        ),
        "Describe": grpc.unary_unary_rpc_method_handler(
            service.describe, DescribeRequest.FromString, DescribeResponse.SerializeToString
        ),
    }
    if service.knows_sessions:
        handlers["Session"] = grpc.stream_stream_rpc_method_handler(
            service.session, SessionRequest.FromString, _serialized
        )
    return grpc.method_handlers_generic_handler("envtrio.v1.EnvService", handlers)


def _serialized(message: Any) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()
