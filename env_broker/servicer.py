"""EnvService on a broker: from gRPC calls to the relay, the cancels and back."""

from __future__ import annotations

import asyncio
import logging
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
from envtrio.v1 import env_service_pb2

from env_broker.channel_options import MAX_MESSAGE_BYTES, MEBIBYTE
from env_broker.client_session import CAPABILITIES
from env_broker.counters import CANCELLED, FAILED, REPLIED, RUNS, outcome_of
from env_broker.decoding import decoded
from env_broker.held_request import HeldRequest
from env_broker.hello import PROTOCOL_GENERATION, check_generation
from env_broker.status import Refusal, error_reason
from env_broker.worker_cancel import PassedOn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from envtrio.v1.env_service_pb2 import CancelResponse, DescribeResponse
    from grpc.aio import ServicerContext

    from env_broker.cancel import Canceller
    from env_broker.client_session import ClientSessions
    from env_broker.counters import Counters
    from env_broker.link import WorkerLink
    from env_broker.relay import Relay

log = logging.getLogger(__name__)

SERVICE: Final = "envtrio.v1.EnvService"
VERSION: Final = version("envtrio")

_MAX_CAUSE_BYTES: Final = 256


class HopBrokenError(Exception):
    """The stream to the client is broken."""


class ContextHop:
    """A gRPC handler's context, as the relay's way to the client."""

    def __init__(self, context: ServicerContext[bytes, bytes]) -> None:
        self._context: Final = context
        self._admitted = False

    async def admitted(self) -> None:
        """As in ClientHop; once, although several workers may be offered it. HopBrokenError as `send`."""
        if not self._admitted:
            self._admitted = True
            await _unbroken(self._context.send_initial_metadata(()))

    async def send(self, message: bytes) -> None:
        """As in ClientHop. HopBrokenError if it cannot be written: what gRPC raises then is not public."""
        await _unbroken(self._context.write(message))

    def time_remaining(self) -> float | None:
        """As in ClientHop."""
        return self._context.time_remaining()


class EnvServicer:
    """EnvService, as generic handlers: what Run streams is bytes, never decoded and never encoded here."""

    def __init__(
        self,
        *,
        relay: Relay,
        canceller: Canceller,
        sessions: ClientSessions,
        links: Mapping[str, WorkerLink],
        counters: Counters,
        instance: str,
        max_queue: int,
    ) -> None:
        self._relay: Final = relay
        self._canceller: Final = canceller
        self._sessions: Final = sessions
        self._links: Final = links
        self._counters: Final = counters
        self._instance: Final = instance
        self._max_queue: Final = max_queue

    def handler(self) -> grpc.GenericRpcHandler:
        """What to add to a server."""
        messages = env_service_pb2
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                # The same on the wire as unary-stream, where gRPC would keep the request until the run ends.
                "Run": grpc.stream_stream_rpc_method_handler(self.run),
                # Requests are decoded by the handlers, which say what is wrong with them.
                "Cancel": grpc.unary_unary_rpc_method_handler(
                    self.cancel, response_serializer=messages.CancelResponse.SerializeToString
                ),
                "Describe": grpc.unary_unary_rpc_method_handler(
                    self.describe, response_serializer=messages.DescribeResponse.SerializeToString
                ),
                "Session": grpc.stream_stream_rpc_method_handler(
                    self.session,
                    messages.SessionRequest.FromString,
                    messages.SessionResponse.SerializeToString,
                ),
            },
        )

    async def run(self, _: object, context: ServicerContext[bytes, bytes]) -> None:
        """Run, see env_service.proto. The request's bytes go on as they came."""
        self._counters.add(RUNS)
        outcome = FAILED
        try:
            request = await _read_request(context)
            self._sessions.expect(request.session_id)
            await self._relay.carry(request, ContextHop(context))
            outcome = REPLIED
        except (Refusal, PassedOn) as error:
            outcome = outcome_of(_reason(error))
            await _abort(context, error)
        except HopBrokenError as error:
            # Nobody is there to hear of it, and the relay has told the worker.
            outcome = CANCELLED
            log.info("reason=CALLER_LOST %s", error)
        except asyncio.CancelledError:
            outcome = CANCELLED
            raise
        finally:
            self._counters.add(outcome)

    async def cancel(self, data: bytes, context: ServicerContext[bytes, CancelResponse]) -> CancelResponse:
        """Cancel, see env_service.proto."""
        try:
            request = decoded(env_service_pb2.CancelRequest, data)
            check_generation(request.protocol_generation)
            if (size := len(request.cause.encode())) > _MAX_CAUSE_BYTES:
                raise Refusal(
                    "INVALID_REQUEST",
                    f"cause has {size} bytes, the limit is {_MAX_CAUSE_BYTES}; make it shorter",
                    field="cause",
                    value=size,
                    limit=_MAX_CAUSE_BYTES,
                )
            return await self._canceller.cancel(request.request_id, request.cause)
        except (Refusal, PassedOn) as error:
            await _abort(context, error)

    async def describe(
        self, data: bytes, context: ServicerContext[bytes, DescribeResponse]
    ) -> DescribeResponse:
        """Describe, see env_service.proto."""
        try:
            check_generation(decoded(env_service_pb2.DescribeRequest, data).protocol_generation)
        except Refusal as refusal:
            await _abort(context, refusal)
        ready = [link for link in self._links.values() if link.ready]
        described = {item.name: item for link in reversed(ready) for item in link.descriptions}
        return env_service_pb2.DescribeResponse(
            protocol_generation=PROTOCOL_GENERATION,
            version=VERSION,
            role="broker",
            instance=self._instance,
            environments=[described[name] for name in sorted(described)],
            limits=env_service_pb2.Limits(
                max_message_bytes=MAX_MESSAGE_BYTES,
                delta_target_bytes=MEBIBYTE,
                max_concurrent_runs=sum(link.worker.slots for link in ready),
                max_queued_runs=self._max_queue,
            ),
            late_cancel_seconds=self._sessions.late_cancel_seconds,
            session_grace_seconds=self._sessions.table.grace,
            capabilities=CAPABILITIES,
            ready_workers=len(ready),
        )

    async def session(
        self,
        _: object,
        context: ServicerContext[env_service_pb2.SessionRequest, env_service_pb2.SessionResponse],
    ) -> None:
        """Session, see env_service.proto."""
        try:
            await self._sessions.serve(context)
        except Refusal as refusal:
            await _abort(context, refusal)


async def _read_request(context: ServicerContext[bytes, bytes]) -> HeldRequest:
    data: Any = await context.read()
    if not isinstance(data, bytes):
        raise Refusal(
            "INVALID_REQUEST", "the call had no RunRequest; send exactly one", field="RunRequest", value=""
        )
    if len(data) > MAX_MESSAGE_BYTES:
        raise Refusal(
            "MESSAGE_TOO_LARGE",
            f"RunRequest has {len(data)} bytes, the limit is {MAX_MESSAGE_BYTES}; make task_json smaller",
            field="task_json",
            value=len(data),
            limit=MAX_MESSAGE_BYTES,
        )
    request = decoded(env_service_pb2.RunRequest, data)
    check_generation(request.protocol_generation)
    return HeldRequest(request, data)


async def _unbroken(writing: Awaitable[None]) -> None:
    try:
        await writing
    except Exception as error:
        raise HopBrokenError(str(error)) from error


def _reason(error: Refusal | PassedOn) -> str | None:
    if isinstance(error, Refusal):
        return error.reason
    return error_reason(tuple(error.error.trailing_metadata() or ()))


async def _abort(context: ServicerContext[Any, Any], error: Refusal | PassedOn) -> NoReturn:
    if isinstance(error, Refusal):
        log.info("reason=%s %s", error.reason, error.brief)
        await error.abort(context)
    status = error.error
    # The raw Metadata object would become UNKNOWN at the client.
    await context.abort(status.code(), status.details() or "", tuple(status.trailing_metadata() or ()))
