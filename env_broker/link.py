"""The broker's way to one worker: a channel, and what is under way on it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, Protocol

import grpc.aio
from envtrio.v1 import env_service_pb2

from env_broker.channel_options import CHANNEL_OPTIONS
from env_broker.session_names import SessionNames
from env_broker.worker_call import RunCall
from env_broker.worker_lane import WorkerLane

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envtrio.v1.env_service_pb2 import (
        CancelRequest,
        CancelResponse,
        DescribeRequest,
        DescribeResponse,
        EnvironmentDescription,
        SessionRequest,
    )

    from env_broker.held_request import HeldRequest
    from env_broker.pool import Worker
    from env_broker.worker_call import WorkerCall

LAST_WORDS_SECONDS: Final = 0.8
"""How long what a worker has said may take behind its goodbye. Less than it waits for the answer to that."""

_MOST_AT_ONCE: Final = 1_024
"""Cancels of lost sessions that are under way at once."""
_POLL_SECONDS: Final = 0.01


class Leg(Protocol):
    """Something under way at a worker that must end when the worker is lost."""

    @property
    def waits(self) -> bool:
        """Whether the worker has yet to say something."""
        return True

    def worker_lost(self) -> None:
        """The worker is lost. Called once, synchronously."""


class WorkerLink:
    """One registered worker: its place in the pool, its channel, the legs on it.

    Args:
        worker: its place in the pool.
        local_slot: which of the broker's own workers it is; empty for any other.
        descriptions: what it says of its environments.
        lane_names: what the sessions of the broker's lanes are called.
    """

    def __init__(
        self,
        worker: Worker,
        *,
        local_slot: str = "",
        descriptions: Sequence[EnvironmentDescription] = (),
        lane_names: SessionNames | None = None,
    ) -> None:
        self.worker: Final = worker
        self.local_slot = local_slot
        self.descriptions = tuple(descriptions)
        self.lost = False
        self.legs: Final[set[Leg]] = set()
        self.gate: Final = asyncio.Semaphore(_MOST_AT_ONCE)
        self.address: Final = worker.address
        self._channel: Final = grpc.aio.insecure_channel(worker.address, options=CHANNEL_OPTIONS)
        # What a worker streams is never decoded here. A call keeps what it was given for as long as it lasts.
        self._run: Final[grpc.aio.UnaryStreamMultiCallable[HeldRequest, bytes]] = self._channel.unary_stream(
            "/envtrio.v1.EnvService/Run", request_serializer=lambda request: request.data
        )
        self._cancel: Final[grpc.aio.UnaryUnaryMultiCallable[CancelRequest, CancelResponse]] = (
            self._channel.unary_unary(
                "/envtrio.v1.EnvService/Cancel",
                request_serializer=env_service_pb2.CancelRequest.SerializeToString,
                response_deserializer=env_service_pb2.CancelResponse.FromString,
            )
        )
        self._describe: Final[grpc.aio.UnaryUnaryMultiCallable[DescribeRequest, DescribeResponse]] = (
            self._channel.unary_unary(
                "/envtrio.v1.EnvService/Describe",
                request_serializer=env_service_pb2.DescribeRequest.SerializeToString,
                response_deserializer=env_service_pb2.DescribeResponse.FromString,
            )
        )
        # What it answers is looked at before it is decoded, and large messages are decoded in a thread.
        self._session: Final[grpc.aio.StreamStreamMultiCallable[SessionRequest, bytes]] = (
            self._channel.stream_stream(
                "/envtrio.v1.EnvService/Session",
                request_serializer=env_service_pb2.SessionRequest.SerializeToString,
            )
        )
        # So are the lane's, and what it sends is made of bytes.
        lane: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(
            "/envtrio.v1.EnvService/Session"
        )
        self.lane: Final = WorkerLane(
            self.name, worker.instance, lane_names or SessionNames(), stream=lane, by_run=self._by_run
        )

    @property
    def name(self) -> str:
        """The worker as messages and logs name it."""
        return f"{self.worker.instance[:8]} at {self.address}"

    @property
    def ready(self) -> bool:
        """Whether it takes runs, at once or when a slot is free."""
        return bool(self.worker.environments) and self.reachable and not self.worker.draining

    @property
    def reachable(self) -> bool:
        """Whether the broker has reached it at its address, and the connection did not break since."""
        return self.worker.reachable

    @property
    def unreachable_because(self) -> str:
        """Why not; empty while that is not known, or it is."""
        return self.worker.unreachable_because

    def run(self, request: HeldRequest, timeout: float | None) -> WorkerCall:
        """Start a run with the request's bytes; `timeout` in seconds. The caller cancels the call."""
        if self.lane.takes(request):
            return self.lane.start(request, timeout)
        return self._by_run(request, timeout)

    def cancel(self, request: CancelRequest) -> grpc.aio.UnaryUnaryCall[CancelRequest, CancelResponse]:
        """Send a Cancel."""
        return self._cancel(request)

    def describe(
        self, request: DescribeRequest, timeout: float
    ) -> grpc.aio.UnaryUnaryCall[DescribeRequest, DescribeResponse]:
        """Ask what it is; `timeout` in seconds."""
        return self._describe(request, timeout=timeout)

    async def disconnected(self) -> None:
        """Return when there is no connection to it."""
        while (state := self._channel.get_state()) is grpc.ChannelConnectivity.READY:
            await self._channel.wait_for_state_change(state)

    def session(self) -> grpc.aio.StreamStreamCall[SessionRequest, bytes]:
        """Start a session's stream. The caller cancels the call."""
        return self._session()

    async def heard_out(self) -> None:
        """It said goodbye: return once all has come that it said before, by other connections; bounded."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                while any(leg.waits for leg in self.legs):  # noqa: ASYNC110  # rare and short
                    await asyncio.sleep(_POLL_SECONDS)

    def lose(self) -> None:
        """The worker is lost: end every leg. Synchronous; `close` follows."""
        self.lost = True
        for leg in tuple(self.legs):
            leg.worker_lost()
        self.lane.end()

    async def close(self) -> None:
        """Close the channel."""
        await self.lane.close()
        await self._channel.close()

    def _by_run(self, request: HeldRequest, timeout: float | None) -> RunCall:
        return RunCall(self._run(request, timeout=timeout))
