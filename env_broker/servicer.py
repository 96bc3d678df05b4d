"""EnvService on a broker: from gRPC calls to the relay, the cancels and back."""

from __future__ import annotations

import logging
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
from envtrio.v1 import env_service_pb2

from env_broker.channel_options import MAX_MESSAGE_BYTES, MEBIBYTE
from env_broker.client_hop import ContextHop, HopBrokenError
from env_broker.client_session import CAPABILITIES
from env_broker.decoding import decoded
from env_broker.held_request import HeldRequest
from env_broker.hello import PROTOCOL_GENERATION, check_generation
from env_broker.run_carrier import RunCarrier
from env_broker.status import Refusal
from env_broker.worker_cancel import PassedOn

if TYPE_CHECKING:
    from collections.abc import Mapping

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


class EnvServicer:
    """EnvService, as generic handlers: what runs stream is bytes, never decoded and never encoded here."""

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
        self._carrier: Final = RunCarrier(relay=relay, counters=counters, expect=sessions.expect)
        self._canceller: Final = canceller
        self._sessions: Final = sessions
        self._links: Final = links
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
                "Session": grpc.stream_stream_rpc_method_handler(self.session),
            },
        )

    async def run(self, _: object, context: ServicerContext[bytes, bytes]) -> None:
        """Run, see env_service.proto. The request's bytes go on as they came."""
        try:
            status = await self._carrier.carry(partial(_read_request, context), ContextHop(context))
        except HopBrokenError:
            return  # nobody is there to hear of it
        if status is not None:
            await _abort(context, status)

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
            await _refuse(context, error)

    async def describe(
        self, data: bytes, context: ServicerContext[bytes, DescribeResponse]
    ) -> DescribeResponse:
        """Describe, see env_service.proto."""
        try:
            check_generation(decoded(env_service_pb2.DescribeRequest, data).protocol_generation)
        except Refusal as refusal:
            await _refuse(context, refusal)
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

    async def session(self, _: object, context: ServicerContext[bytes, bytes]) -> None:
        """Session, see env_service.proto."""
        try:
            await self._sessions.serve(context, self._carrier)
        except Refusal as refusal:
            await _refuse(context, refusal)


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


async def _refuse(context: ServicerContext[Any, Any], error: Refusal | PassedOn) -> NoReturn:
    if isinstance(error, Refusal):
        log.info("reason=%s %s", error.reason, error.brief)
    await _abort(context, error)


async def _abort(context: ServicerContext[Any, Any], error: Refusal | PassedOn) -> NoReturn:
    if isinstance(error, Refusal):
        await error.abort(context)
    status = error.error
    # The raw Metadata object would become UNKNOWN at the client.
    await context.abort(status.code(), status.details() or "", tuple(status.trailing_metadata() or ()))
