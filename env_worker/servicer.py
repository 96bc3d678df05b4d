"""EnvService on a worker: from gRPC calls to runs and back."""

from __future__ import annotations

import asyncio
import logging
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
from envtrio.v1 import env_service_pb2

from env_worker.delta.limits import MAX_MESSAGE_BYTES
from env_worker.delta.streamer import DELTA_TARGET_BYTES
from env_worker.domain.ledger import CancelOutcome
from env_worker.entrance import Entrance, fault, log_refusal
from env_worker.port import RunPort
from env_worker.request import (
    BIG_REQUEST_BYTES,
    PROTOCOL_GENERATION,
    check_generation,
    check_name,
    check_request_id,
    decoded,
)
from env_worker.sessions import CAPABILITIES
from env_worker.status import Refusal
from env_worker.unread import UnreadLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from env_worker import run
    from env_worker.envs.registry import EnvironmentRegistry
    from env_worker.model.base import ModelClient
    from env_worker.model.engines import Engines
    from env_worker.run import RunSpec
    from env_worker.runner import Runner
    from env_worker.sessions import Sessions

logger = logging.getLogger(__name__)

SERVICE_NAME: Final = env_service_pb2.DESCRIPTOR.services_by_name["EnvService"].full_name
VERSION: Final = version("envtrio")

OUTCOMES: Final[Mapping[CancelOutcome, env_service_pb2.CancelOutcome.ValueType]] = {
    CancelOutcome.ABORTED: env_service_pb2.CANCEL_OUTCOME_ABORTED,
    CancelOutcome.DISCARDED: env_service_pb2.CANCEL_OUTCOME_DISCARDED,
    CancelOutcome.TOO_LATE: env_service_pb2.CANCEL_OUTCOME_TOO_LATE,
    CancelOutcome.REMEMBERED: env_service_pb2.CANCEL_OUTCOME_REMEMBERED,
}


def describe_environments(
    environments: EnvironmentRegistry, model: ModelClient
) -> list[env_service_pb2.EnvironmentDescription]:
    """What is served, as Describe and a worker's hello say it."""
    return [
        env_service_pb2.EnvironmentDescription(
            name=name,
            description=str(getattr(environments.get(name), "description", "")),
            default_model=model.name,
        )
        for name in environments.names
    ]


class EnvServicer:
    """Serves a `Runner`'s runs and its clients' `Sessions`. A handler drains its run's port and decides
    nothing but "written" and "gone".

    Args:
        capabilities: gives those that Describe lists beside sessions.
    """

    def __init__(
        self,
        runner: Runner,
        environments: EnvironmentRegistry,
        engines: Engines,
        sessions: Sessions,
        *,
        instance: str,
        clock: Callable[[], float],
        capabilities: Callable[[], list[str]] = list,
    ) -> None:
        self._runner: Final = runner
        self._entrance: Final = Entrance(runner, environments, engines, named=sessions.named, clock=clock)
        self._environments: Final = environments
        self._model: Final = engines.default
        self._sessions: Final = sessions
        self._instance: Final = instance
        self._capabilities: Final = capabilities

    async def Run(self, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        """See EnvService.Run in env_service.proto. Messages are written as the bytes that the diff made."""
        port: RunPort[Refusal] = RunPort()
        try:
            deadline = self._entrance.deadline(context.time_remaining())
            big = len(data) > BIG_REQUEST_BYTES
            spec = await asyncio.to_thread(self._read, data, deadline) if big else self._read(data, deadline)
            # Last: from here on only `_drain` may fail, which gives it up.
            run = self._entrance.admit(spec, port, len(data))
            del spec
        except Refusal as refusal:
            await self._abort(context, refusal)
        except Exception as error:
            await self._abort(context, fault(error))
        await self._drain(port, run, context)
        del run  # the status may wait for a caller that does not read, and nothing else with it
        if port.ending is not None:
            await self._abort(context, port.ending)

    def _read(self, data: bytes, deadline: float | None) -> RunSpec:
        return self._entrance.read(decoded(env_service_pb2.RunRequest, data), deadline)

    async def _drain(
        self,
        port: RunPort[Refusal],
        carried: run.Run,
        context: grpc.aio.ServicerContext[bytes, bytes],
    ) -> None:
        limit = UnreadLimit()
        port.on_end = limit.begin
        try:
            if await port.wait_open():
                await context.send_initial_metadata(())
            while (data := await port.take()) is not None:
                await context.write(data)
                port.written()  # of the reply: settles the run, and the next thing is status OK
        except asyncio.CancelledError:
            if limit.cancelled():
                raise
            # The write was broken off. The status follows, for a caller who reads after all.
        finally:
            # Cancelled, broken or done, by whatever exception: the first settlement counts, and no await
            # before it.
            self._runner.caller_gone(carried)
            port.on_end = None
            limit.close()

    async def Cancel(
        self, data: bytes, context: grpc.aio.ServicerContext[bytes, env_service_pb2.CancelResponse]
    ) -> env_service_pb2.CancelResponse:
        """See EnvService.Cancel in env_service.proto."""
        try:
            request = decoded(env_service_pb2.CancelRequest, data)
            check_generation(request.protocol_generation)
            check_request_id(request.request_id)
            check_name("cause", request.cause)
            outcome = self._runner.cancel(request.request_id)
        except Refusal as refusal:
            await self._abort(context, refusal)
        # Of a run that never comes, as one that was given up before it left, it is asked again and again.
        logger.log(
            logging.DEBUG if outcome is CancelOutcome.REMEMBERED else logging.INFO,
            "run=%s cancel outcome=%s cause=%r",
            request.request_id[:8],
            outcome.name,
            request.cause or "none given",
        )
        return env_service_pb2.CancelResponse(outcome=OUTCOMES[outcome])

    async def Describe(
        self, data: bytes, context: grpc.aio.ServicerContext[bytes, env_service_pb2.DescribeResponse]
    ) -> env_service_pb2.DescribeResponse:
        """See EnvService.Describe in env_service.proto."""
        try:
            check_generation(decoded(env_service_pb2.DescribeRequest, data).protocol_generation)
        except Refusal as refusal:
            await self._abort(context, refusal)
        slots = self._runner.slots
        return env_service_pb2.DescribeResponse(
            protocol_generation=PROTOCOL_GENERATION,
            version=VERSION,
            role="worker",
            instance=self._instance,
            environments=describe_environments(self._environments, self._model),
            limits=env_service_pb2.Limits(
                max_message_bytes=MAX_MESSAGE_BYTES,
                delta_target_bytes=DELTA_TARGET_BYTES,
                max_concurrent_runs=slots.capacity,
                max_queued_runs=slots.max_waiting,
            ),
            late_cancel_seconds=self._runner.table.late_cancel_seconds,
            session_grace_seconds=self._sessions.table.grace_seconds,
            capabilities=[*CAPABILITIES, *self._capabilities()],
            ready_workers=int(self._runner.accepting),
        )

    async def Session(
        self, request_iterator: object, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        """See EnvService.Session in env_service.proto. Messages are read and written as bytes."""
        try:
            await self._sessions.carry(context, self._entrance)
        except Refusal as refusal:
            await self._abort(context, refusal)

    async def _abort(self, context: grpc.aio.ServicerContext[Any, Any], refusal: Refusal) -> NoReturn:
        log_refusal(refusal)
        await context.abort(refusal.code, refusal.message, refusal.trailing_metadata())


def method_handlers(servicer: EnvServicer) -> grpc.GenericRpcHandler:
    """The service's handlers: those that the generated code makes, except that Run and Session write bytes
    as they are, and that requests are decoded by the handlers, which say what is wrong with them."""
    return grpc.method_handlers_generic_handler(
        SERVICE_NAME,
        {
            "Run": grpc.unary_stream_rpc_method_handler(servicer.Run),
            "Cancel": grpc.unary_unary_rpc_method_handler(
                servicer.Cancel,
                response_serializer=env_service_pb2.CancelResponse.SerializeToString,
            ),
            "Describe": grpc.unary_unary_rpc_method_handler(
                servicer.Describe,
                response_serializer=env_service_pb2.DescribeResponse.SerializeToString,
            ),
            "Session": grpc.stream_stream_rpc_method_handler(servicer.Session),
        },
    )
