"""The asynchronous client: what an orchestrator imports."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

from envtrio.v1.env_service_pb2 import (
    CancelOutcome,
    CancelRequest,
    CancelResponse,
    DescribeRequest,
    DescribeResponse,
    RunRequest,
)
from envtrio.v1.env_service_pb2_grpc import EnvServiceStub

from env_client import serving
from env_client.address import checked_target
from env_client.channels import open_aio_channel, open_sync_channel
from env_client.courier import CancelCourier
from env_client.errors import UnavailableError
from env_client.home import Home
from env_client.intake import Intake
from env_client.lane import Lane
from env_client.request import (
    PROTOCOL_GENERATION,
    Endpoint,
    RunDefaults,
    Sampling,
    Task,
    build_request,
    checked_request_id,
    checked_timeout,
    outcome_name,
)
from env_client.session import Session, part
from env_client.side_thread import SideThread
from env_client.statuses import translated
from env_client.stream import EpisodeStream

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    import grpc
    from envtrio.v1.episode_pb2 import Episode

    from env_client.lane_run import RunCall
    from env_client.stream import OnDelta


class EnvClient:
    """Runs episodes on a worker or a broker. Use it as `async with EnvClient(...) as client`.

    All calls belong to one event loop, in one process: make it after a fork. Until it is closed it has tasks
    of its own in that loop. The arguments are what each run gets that does not say otherwise.

    Args:
        target: "HOST:PORT", or an address of gRPC's own, as "dns:///HOST:PORT" or "unix:PATH".
        env: the environment; None: the only one that the server has.
        model: the model to ask; None: the server's default.
        endpoint: where to ask it: a URL or an `Endpoint`; None: the server's default.
        sampling: `SamplingParams`, or a mapping of its fields and further keys of the engine; `logprobs` and
            `top_logprobs` are its `top_logprobs_count`. A run's own sampling replaces it as a whole.
        owner: who may release the runs' training arrays by name.
        timeout: seconds that one run may take, from the call to the checked episode; None: no limit.
        credentials: of a TLS channel; None: in the clear.
        courier: carries the cancels, and is closed with the client; None: a new one.
        session: confirms deliveries, and is closed with the client; None: a new one.

    Raises:
        ValueError: `target` is no address.
        InvalidRequestError: `timeout` is malformed.
    """

    def __init__(
        self,
        target: str,
        *,
        env: str | None = None,
        model: str | None = None,
        endpoint: str | Endpoint | None = None,
        sampling: Sampling | None = None,
        owner: str = "",
        timeout: float | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        courier: CancelCourier | None = None,
        session: Session | None = None,
    ) -> None:
        self.target = checked_target(target)
        self._defaults = RunDefaults(env, model, endpoint, sampling, owner, checked_timeout(timeout))
        self._credentials = credentials
        # Two channels, but with the same options, so that gRPC carries both on one connection.
        open_channel = functools.partial(open_sync_channel, target, credentials)
        self._courier = courier or CancelCourier(open_channel)
        self._session = session or Session(open_channel)
        self._channel: grpc.aio.Channel | None = None
        self._lane: Lane | None = None
        self._streams: set[EpisodeStream] = set()
        self._side = SideThread("envtrio-client")
        self._closed = False
        self._home = Home()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run(
        self,
        task: Task,
        *,
        env: str | None = None,
        model: str | None = None,
        endpoint: str | Endpoint | None = None,
        sampling: Sampling | None = None,
        request_id: str | None = None,
        group_id: str | None = None,
        owner: str | None = None,
        timeout: float | None = None,
        on_delta: OnDelta | None = None,
    ) -> Episode:
        """Run one episode and return it, assembled and checked. One with `head.ok` False is returned as well.

        It returns only when the server has confirmed that this is final (one without sessions makes it so at
        the end of its window). However else it ends, `DeliveryUncertainError` apart, the server is told that
        nobody wants the episode.

        Args:
            task: a JSON object that the environment understands.
            env, model, endpoint, sampling, owner, timeout: in place of the client's own.
            request_id: the run's id, 32 lower-case hexadecimal digits; None: a random one.
            group_id: groups episodes of one task.
            on_delta: a plain or asynchronous function that gets each `TraceDelta` once it was applied.

        Raises:
            InvalidRequestError: an argument is malformed (`InvalidTaskError`: the task); nothing was sent.
            DeliveryUncertainError: the episode came, the error has it, but whether that is final is unknown.
            SessionEndedError: the server has ended the client's session for good; nothing was sent.
            EnvError: the run could not be carried out. See `env_client.errors` for what each one means.
        """
        stream = self.stream(
            task,
            env=env,
            model=model,
            endpoint=endpoint,
            sampling=sampling,
            request_id=request_id,
            group_id=group_id,
            owner=owner,
            timeout=timeout,
        )
        async with stream:
            return await stream.result(on_delta)

    def stream(
        self,
        task: Task,
        *,
        env: str | None = None,
        model: str | None = None,
        endpoint: str | Endpoint | None = None,
        sampling: Sampling | None = None,
        request_id: str | None = None,
        group_id: str | None = None,
        owner: str | None = None,
        timeout: float | None = None,
    ) -> EpisodeStream:
        """As `run`, delta by delta: enter it with `async with`, then iterate it with `async for`.

        At the end of the iteration `stream.episode` is the episode; `await stream.result()` reads the rest
        and returns it. Leaving the context before either cancels the run.

        Raises:
            InvalidRequestError: an argument is malformed.
        """
        request = build_request(
            task,
            self._defaults,
            env=env,
            model=model,
            endpoint=endpoint,
            sampling=sampling,
            request_id=request_id,
            group_id=group_id,
            owner=owner,
        )
        limit = self._defaults.timeout if timeout is None else checked_timeout(timeout)
        intake = Intake(request, self._courier.send, self._session)
        return EpisodeStream(intake, lambda: self._begin(request, limit), limit, self._streams, self._side)

    async def health(self, *, timeout: float = 10.0) -> str:
        """The server's health: "SERVING" when it would take a run, else "NOT_SERVING" or "UNKNOWN".

        Raises:
            UnavailableError: it cannot be reached.
        """
        return await serving.health(self._open_channel(), timeout)

    async def wait_until_ready(self, timeout: float | None = 60.0) -> None:
        """Wait until the server is SERVING; it need not be there yet.

        Raises:
            UnavailableError: it was not within `timeout` seconds.
        """
        await serving.wait_until_serving(self._open_channel, self.target, timeout)

    async def cancel(self, request_id: str, *, timeout: float = 10.0) -> str:
        """Take a run back: end it if it is live, discard its episode if its reply has left.

        Returns:
            The outcome's name: "ABORTED", "DISCARDED", "TOO_LATE", or "REMEMBERED" (unknown there yet; it is
            repeated in the background until the server's window is over).

        Raises:
            InvalidRequestError: `request_id` is malformed.
            UnavailableError: no answer yet; likewise repeated in the background.
        """
        request = CancelRequest(
            request_id=checked_request_id(request_id), protocol_generation=PROTOCOL_GENERATION
        )
        try:
            call = self._stub().Cancel(request, timeout=timeout)
            answer: CancelResponse = await translated(call, request_id)
        except UnavailableError:
            self._courier.send(request_id, "")
            raise
        if answer.outcome == CancelOutcome.CANCEL_OUTCOME_REMEMBERED:
            self._courier.send(request_id, "")
        return outcome_name(answer.outcome)

    async def describe(self, *, timeout: float = 10.0) -> DescribeResponse:
        """What is served, within which limits, in which version.

        Raises:
            UnavailableError: the server cannot be reached.
            ProtocolMismatchError: it speaks another protocol generation.
        """
        request = DescribeRequest(protocol_generation=PROTOCOL_GENERATION)
        answer: DescribeResponse = await translated(self._stub().Describe(request, timeout=timeout))
        return answer

    async def close(self, timeout: float = 5.0) -> None:
        """Cancel what is open, let cancels leave, say goodbye, all in `timeout` seconds; then disconnect."""
        self._closed = True
        try:
            for stream in list(self._streams):
                stream.abandon("the client was closed")
            # Not by the client's own thread, which is not there in a fork, or when it is closed once more.
            parting: list[Any] = [SideThread.once("envtrio-end", part, self._courier, self._session, timeout)]
            if self._lane is not None and not self._home.is_foreign:
                parting.append(self._lane.close(timeout))
            await asyncio.gather(*parting)
        finally:
            if not self._home.is_foreign:
                self._side.close()
                if self._channel is not None:
                    await self._channel.close()

    def _begin(self, request: RunRequest, timeout: float | None) -> tuple[RunCall, Lane]:
        channel = self._open_channel()
        request.session_id = self._session.open()
        self._lane = self._lane or Lane(channel)
        return self._lane.carry(request, timeout), self._lane

    def _stub(self) -> Any:
        return EnvServiceStub(self._open_channel())

    def _open_channel(self) -> grpc.aio.Channel:
        self._home.claim()
        if self._closed:
            raise RuntimeError("the client is closed: make a new EnvClient")
        if self._channel is None:
            # Not in __init__: a channel belongs to the loop that runs when it is made.
            self._channel = open_aio_channel(self.target, self._credentials)
        return self._channel
