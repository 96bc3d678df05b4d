"""How the runs of an `EnvClient` travel: many in one Session stream, or each by a Run call of its own."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import grpc
from envtrio.v1.env_service_pb2 import RunRequest, SessionOpen, SessionRequest

from env_client.channels import RUN_METHOD, SESSION_METHOD
from env_client.confirmations import pause_seconds
from env_client.errors import shown_id
from env_client.lane_end import StreamEnd
from env_client.lane_frames import Opening, RunStatus
from env_client.lane_stream import LaneStream
from env_client.request import PROTOCOL_GENERATION, new_request_id
from env_client.side_thread import SideThread
from env_client.statuses import made_details

if TYPE_CHECKING:
    from env_client.confirmations import Verdict
    from env_client.lane_run import LaneRun, RunCall

_LOG: Final = logging.getLogger(__name__)

# A larger request would hold up the others.
_CARRIED_BYTES: Final = 1024 * 1024
_OPEN_SECONDS: Final = 5.0
# For a server that has no sessions, and one that says nothing: runs wait each time that it is asked.
_LONG_PAUSE_SECONDS: Final = 30.0


class Lane:
    """Carries the runs of one client over one channel, and belongs to its event loop.

    The runs share a Session stream, opened with the first of them, of a session that no run names: whether a
    client lives is known from its `Session`. Where the server carries no runs in sessions, or does not open
    the stream, they travel by Run; so does a request of more than 1 MiB. A stream that broke is opened again
    with the next run. Without a connection nothing of a run is sent, and it ends with NOT_ADMITTED.

    Args:
        channel: the channel. Not closed here.
        open_seconds: how long the server may take to open the stream before its runs travel by Run.
    """

    def __init__(self, channel: grpc.aio.Channel, *, open_seconds: float = _OPEN_SECONDS) -> None:
        self._channel = channel
        # Without deserializers, so that big messages are decoded off the event loop.
        self._run_method: Any = channel.unary_stream(
            RUN_METHOD, request_serializer=RunRequest.SerializeToString, response_deserializer=None
        )
        self._session_method: Any = channel.stream_stream(
            SESSION_METHOD, request_serializer=SessionRequest.SerializeToString, response_deserializer=None
        )
        self._open_seconds = open_seconds
        self._side = SideThread("envtrio-lane")
        self._session_id = ""
        self._epoch = 0
        self._stream: LaneStream | None = None
        self._failures = 0
        self._open_at = 0.0

    def carry(self, request: RunRequest, timeout: float | None) -> RunCall:
        """Begin a run. Does not wait for the server.

        Args:
            request: the whole request.
            timeout: seconds until it ends with DEADLINE_EXCEEDED; None: no limit.
        """
        size = request.ByteSize()
        stream = self._stream_for_runs() if size <= _CARRIED_BYTES else None
        if stream is None:
            return self._by_run(request, timeout)
        now = asyncio.get_running_loop().time()
        return stream.carry(Opening(request, size, None if timeout is None else now + timeout))

    def confirm(self, request_id: str) -> asyncio.Future[Verdict | None] | None:
        """Confirm an episode where that is quick: in the stream, as it stands. `forget` it in the end.

        Returns:
            What the server says, or None where that is not the last word; no future where no stream is open.
        """
        stream = self._stream
        return stream.confirm(request_id) if stream is not None and stream.carries else None

    def forget(self, request_id: str) -> None:
        """Nobody waits for what is said of that confirmation; it is not sent, unless it has left."""
        if self._stream is not None:
            self._stream.forget(request_id)

    async def close(self, timeout: float) -> None:
        """Say goodbye in at most `timeout` seconds. What is carried must have been given up before."""
        stream = self._stream
        try:
            if stream is not None:
                await stream.part(timeout)
        finally:
            self._side.close()
            if stream is not None:
                stream.give_up(StreamEnd("the client was closed"))
                await stream.join()

    def _stream_for_runs(self) -> LaneStream | None:
        if self._stream is None:
            if self._can_connect and asyncio.get_running_loop().time() < self._open_at:
                return None
            self._stream = self._open_stream()
        return self._stream if self._stream.takes_runs else None

    def _open_stream(self) -> LaneStream:
        if not self._session_id:
            self._session_id = new_request_id()
        self._epoch += 1
        opening = SessionOpen(
            session_id=self._session_id, epoch=self._epoch, protocol_generation=PROTOCOL_GENERATION
        )
        return LaneStream(
            self._session_method(),
            opening,
            self._open_seconds,
            self._side,
            self._hand_on,
            self._stream_ended,
        )

    @property
    def _can_connect(self) -> bool:
        """False: all that is begun now fails, unless the server comes back at this very moment."""
        return self._channel.get_state() is not grpc.ChannelConnectivity.TRANSIENT_FAILURE

    def _by_run(self, request: RunRequest, timeout: float | None) -> RunCall:
        call: RunCall = self._run_method(request, timeout=timeout)
        return call

    def _hand_on(self, run: LaneRun, opening: Opening, why: str) -> None:
        if self._can_connect:
            left = opening.seconds_left(asyncio.get_running_loop().time())
            run.follow(self._by_run(opening.request, left))
        else:  # A call of its own would fail alike, and nobody could say that nothing of the run was sent.
            message = f"not sent, as there is no connection: {why}"
            run.end(RunStatus(grpc.StatusCode.UNAVAILABLE.value[0], message, made_details("NOT_ADMITTED")))

    def _stream_ended(self, stream: LaneStream, end: StreamEnd) -> None:
        self._stream = None
        shown = shown_id(self._session_id)
        if stream.was_opened:
            self._failures = 0
            if stream.is_parting:
                _LOG.debug("lane=%s: closed", shown)
            else:
                _LOG.info("lane=%s: lost, opened again with the next run: %s", shown, end.why)
            return
        self._failures += 1
        pause = pause_seconds(self._failures)
        if end.error is not None:
            pause = max(pause, end.error.retry_after or 0.0)
            # A server may be followed by one that has sessions.
            if end.error.code == "UNIMPLEMENTED":
                pause = max(pause, _LONG_PAUSE_SECONDS)
        elif not end.is_torn:
            pause = _LONG_PAUSE_SECONDS
        self._open_at = asyncio.get_running_loop().time() + pause
        _LOG.debug("lane=%s: not open, runs travel by Run for %.2f s: %s", shown, pause, end.why)
