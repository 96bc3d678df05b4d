"""A broker in this process, and a client of it that sees bytes as they come."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
from envtrio.v1 import delta_pb2, env_service_pb2, env_service_pb2_grpc

from env_broker.config import BrokerSettings
from env_broker.dial_back import describe
from env_broker.server import BrokerServer
from tests.helpers.history import History
from tests.helpers.session_runs import SessionRuns
from tests.helpers.session_stream import SessionStream
from tests.helpers.stub_client import OPTIONS, reason_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from env_broker.clock import Clock
    from env_broker.dial_back import Dial


class RawClient:
    """Calls a broker with bytes, so that what comes is seen as it came."""

    by_session = False
    """Whether its runs go in the stream of one session, which looks the same from here."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._runs: SessionRuns | None = None
        self._stub = env_service_pb2_grpc.EnvServiceStub(channel)
        self._run: Any = channel.unary_stream("/envtrio.v1.EnvService/Run")
        self._cancel = channel.unary_unary(
            "/envtrio.v1.EnvService/Cancel",
            request_serializer=env_service_pb2.CancelRequest.SerializeToString,
            response_deserializer=env_service_pb2.CancelResponse.FromString,
        )

    def run_bytes(self, data: bytes, *, timeout: float = 20.0) -> Any:
        """The call of a Run whose request is `data`."""
        if self.by_session:
            return self.runs.start(data, timeout=timeout)
        return self._run(data, timeout=timeout)

    def start(self, request_id: str, *, timeout: float = 20.0, **fields: Any) -> Any:
        return self.run_bytes(run_request(request_id, **fields), timeout=timeout)

    async def read_all(self, call: Any) -> tuple[list[bytes], str, str]:
        """Messages, code and reason."""
        messages: list[bytes] = []
        try:
            while isinstance(message := await call.read(), bytes):
                messages.append(message)
        except grpc.aio.AioRpcError as error:
            return messages, error.code().name, reason_of(error)
        return messages, "OK", ""

    async def run(self, request_id: str, **fields: Any) -> tuple[list[bytes], str, str]:
        return await self.read_all(self.start(request_id, **fields))

    @property
    def runs(self) -> SessionRuns:
        """The session that carries runs, opened with the first."""
        if self._runs is None:
            self._runs = SessionRuns(self._stub)
        return self._runs

    async def close(self) -> None:
        """End that session, if there is one."""
        if self._runs is not None:
            await self._runs.close()

    def session(self) -> SessionStream:
        """A session's stream that is not opened yet."""
        return SessionStream(self._stub, History())

    async def cancel(self, request_id: str) -> str:
        message = env_service_pb2.CancelRequest(request_id=request_id, protocol_generation=1, cause="a test")
        try:
            answer = await self._cancel(message, timeout=20)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name} {reason_of(error)}"
        outcome = env_service_pb2.CancelOutcome.Name(answer.outcome).removeprefix("CANCEL_OUTCOME_")
        return outcome + (" WORKER_LOST" if answer.reason else "")


def run_request(request_id: str, **fields: Any) -> bytes:
    values = {"protocol_generation": 1, "environment": "scripted", "task_json": "{}", **fields}
    return env_service_pb2.RunRequest(request_id=request_id, **values).SerializeToString()


@asynccontextmanager
async def connected(
    clock: Clock | None = None, *, dial: Dial = describe, **settings: Any
) -> AsyncIterator[tuple[BrokerServer, RawClient]]:
    """A broker with these settings that gives no time to running runs when it stops, and its client. A
    scripted worker sends no heartbeats, so by the real clock a lease is longer than a test."""
    lease = {"lease_seconds": 600.0} if clock is None else {}
    options = {"drain_seconds": 0.0, **lease, **settings}
    async with (
        BrokerServer(BrokerSettings(**options), clock=clock, dial=dial) as broker,
        grpc.aio.insecure_channel(broker.address, options=OPTIONS) as channel,
    ):
        client = RawClient(channel)
        try:
            yield broker, client
        finally:
            await client.close()


def message(text: str) -> bytes:
    """A DeltaStream behind a field that nobody knows: a hop that decoded it would change its order."""
    known = delta_pb2.DeltaStream(deltas=[delta_pb2.TraceDelta(trace_id=text)])
    return b"\xba\x3e\x03abc" + known.SerializeToString()


async def until_queued(broker: BrokerServer, count: int) -> None:
    """Wait until so many runs wait, one event-loop turn at a time."""
    async with asyncio.timeout(10):
        while broker.dispatcher.queued != count:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0)
