"""The synchronous client, for scripts and notebooks. Uses no event loop, and minds none that runs."""

from __future__ import annotations

import functools
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from envtrio.v1.env_service_pb2 import (
    CancelOutcome,
    CancelRequest,
    DescribeRequest,
    DescribeResponse,
    RunRequest,
)
from envtrio.v1.env_service_pb2_grpc import EnvServiceStub
from grpc_health.v1 import health_pb2, health_pb2_grpc

from env_client.address import checked_target
from env_client.channels import RUN_METHOD, SERVING_NAMES, open_sync_channel
from env_client.courier import CancelCourier
from env_client.errors import RunDeadlineError, UnavailableError
from env_client.home import Home
from env_client.intake import Intake
from env_client.pool import NOT_REACHED, not_ready, why_not_ready_sync
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
from env_client.statuses import env_error
from env_client.sync_stream import SyncEpisodeStream, check_plain

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from envtrio.v1.delta_pb2 import TraceDelta
    from envtrio.v1.episode_pb2 import Episode

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Wire:
    """A channel and its methods. Made together: a stub of a channel that is closed ends the process."""

    channel: grpc.Channel
    service: EnvServiceStub
    health: Any
    run: Any


class SyncEnvClient:
    """Runs episodes on a worker or a broker, as `EnvClient` does, with plain calls. Use it in a `with` block.

    May be used from several threads, but of one process: make it after a fork. Ctrl-C ends the run
    that is waited for and tells the server.

    Args:
        target: "HOST:PORT", or an address of gRPC's own, as "dns:///HOST:PORT" or "unix:PATH".
        channel: in place of one to `target`; the client does not close it.
        courier: carries the cancels, and is closed with the client; None: a new one.
        session: confirms deliveries, and is closed with the client; None: a new one, on `channel` if given.

    The other arguments, and what is raised, are those of `EnvClient`.
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
        channel: grpc.Channel | None = None,
        courier: CancelCourier | None = None,
        session: Session | None = None,
    ) -> None:
        self.target = checked_target(target)
        self._defaults = RunDefaults(env, model, endpoint, sampling, owner, checked_timeout(timeout))
        self._owns_channel = channel is None
        self._open_channel = functools.partial(open_sync_channel, target, credentials)
        self._courier = courier or CancelCourier(self._open_channel)
        if channel is None:
            self._session = session or Session(self._open_channel)
        else:
            self._session = session or Session(lambda: channel, owns_channel=False)
        self._home = Home()
        # Held while the channel is made, never while anything is waited for.
        self._opening = threading.Lock()
        self._closed = False
        self._wire: _Wire | None = None
        if channel is not None:
            self._home.claim()  # Whoever made it has used it.
            self._wire = _wire(channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(
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
        on_delta: Callable[[TraceDelta], object] | None = None,
    ) -> Episode:
        """As `EnvClient.run`; `on_delta` is a plain function. The timeout is looked at between its calls.

        Raises:
            TypeError: `on_delta` is asynchronous. Where that is seen at its first call only, the run is taken
                back.
        """
        check_plain(on_delta)
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
        with stream:
            return stream.result(on_delta)

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
    ) -> SyncEpisodeStream:
        """As `EnvClient.stream`: `with client.stream(task) as stream: for delta in stream: ...`."""
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
        return SyncEpisodeStream(intake, lambda: self._call_run(request, limit), limit)

    def health(self, *, timeout: float = 10.0) -> str:
        """As `EnvClient.health`."""
        request = health_pb2.HealthCheckRequest()
        return SERVING_NAMES[
            _translated(lambda: self._connected().health.Check(request, timeout=timeout)).status
        ]

    def wait_until_ready(self, timeout: float | None = 60.0) -> None:
        """As `EnvClient.wait_until_ready`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        last = NOT_REACHED
        left = timeout
        health = self._connected().health
        while left is None or left > 0:
            call = health.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=left)
            try:
                for answer in call:
                    last = SERVING_NAMES[answer.status]
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except grpc.RpcError as error:
                translated = env_error(error)
                if not isinstance(translated, UnavailableError | RunDeadlineError):
                    raise translated from error
            finally:
                call.cancel()
            left = None if deadline is None else deadline - time.monotonic()
            time.sleep(0.1 if left is None else min(0.1, max(0.0, left)))
        asks = last in ("NOT_SERVING", NOT_REACHED)
        why = why_not_ready_sync(self._connected().channel) if asks else ""
        raise not_ready(self.target, timeout, last, why)

    def cancel(self, request_id: str, *, timeout: float = 10.0) -> str:
        """As `EnvClient.cancel`."""
        request = CancelRequest(
            request_id=checked_request_id(request_id), protocol_generation=PROTOCOL_GENERATION
        )
        try:
            answer = _translated(
                lambda: self._connected().service.Cancel(request, timeout=timeout), request_id
            )
        except UnavailableError:
            self._courier.send(request_id, "")
            raise
        if answer.outcome == CancelOutcome.CANCEL_OUTCOME_REMEMBERED:
            self._courier.send(request_id, "")
        return outcome_name(answer.outcome)

    def describe(self, *, timeout: float = 10.0) -> DescribeResponse:
        """As `EnvClient.describe`."""
        request = DescribeRequest(protocol_generation=PROTOCOL_GENERATION)
        return _translated(lambda: self._connected().service.Describe(request, timeout=timeout))

    def close(self, timeout: float = 5.0) -> None:
        """Let pending cancels leave, say goodbye, in at most `timeout` seconds, then disconnect."""
        if self._home.is_foreign:
            return
        try:
            part(self._courier, self._session, timeout)
        finally:
            with self._opening:
                self._closed, wire = True, self._wire
            if wire is not None and self._owns_channel:
                wire.channel.close()

    def _call_run(self, request: RunRequest, timeout: float | None) -> Any:
        run = self._connected().run
        # The run does not wait for the session, only its confirmation does.
        request.session_id = self._session.open()
        return run(request, timeout=timeout)

    def _connected(self) -> _Wire:
        self._home.claim()
        with self._opening:
            if self._closed:
                raise RuntimeError("the client is closed: make a new SyncEnvClient")
            if self._wire is None:
                # Not in __init__: a channel does not survive a fork.
                self._wire = _wire(self._open_channel())
            return self._wire


def _wire(channel: grpc.Channel) -> _Wire:
    run: Any = channel.unary_stream(
        RUN_METHOD, request_serializer=RunRequest.SerializeToString, response_deserializer=None
    )
    return _Wire(channel, EnvServiceStub(channel), health_pb2_grpc.HealthStub(channel), run)


def _translated(call: Callable[[], _T], request_id: str = "") -> _T:
    try:
        return call()
    except grpc.RpcError as error:
        raise env_error(error, request_id) from error
