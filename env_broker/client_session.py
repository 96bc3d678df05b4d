"""Sessions of clients: their streams, and what is due when one does not come back."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from envtrio.v1 import env_service_pb2
from google.protobuf.message import DecodeError

from env_broker.client_stream import ClientStream
from env_broker.clock import Clock, within
from env_broker.hello import check_generation
from env_broker.route import InvalidRequestIdError, RouteState
from env_broker.route import key as check_request_id
from env_broker.sessions import InvalidSessionError, SessionsFullError, SupersededError
from env_broker.status import Refusal, short
from env_broker.tasks import first_of
from env_broker.worker_session import MAX_FRAME_IDS

if TYPE_CHECKING:
    from envtrio.v1.env_service_pb2 import SessionRequest, SessionResponse
    from grpc.aio import ServicerContext

    from env_broker.cancel import Canceller
    from env_broker.confirm import Confirmer
    from env_broker.pool import Pool
    from env_broker.routes import RouteTable
    from env_broker.sessions import SessionTable

    Context = ServicerContext[SessionRequest, SessionResponse]

log = logging.getLogger(__name__)

CAPABILITIES: Final = ("sessions",)
OPEN_SECONDS: Final = 10.0
"""How long a stream may take to send its first frame."""
_STALL_SECONDS: Final = 0.5


class _StreamBrokenError(Exception):
    """The stream to the client is broken."""


class ClientSessions:
    """Serves Session, and has the runs of lost sessions cancelled.

    Args:
        table: which sessions there are.
    """

    def __init__(
        self,
        *,
        table: SessionTable,
        pool: Pool,
        routes: RouteTable,
        confirmer: Confirmer,
        canceller: Canceller,
        clock: Clock,
        instance: str,
    ) -> None:
        self.table: Final = table
        self._pool: Final = pool
        self._routes: Final = routes
        self._confirmer: Final = confirmer
        self._canceller: Final = canceller
        self._clock: Final = clock
        self._instance: Final = instance
        self._streams: dict[str, ClientStream] = {}
        self._ended: Final = asyncio.Event()
        self._progress: Final = asyncio.Event()
        self._closed: Refusal | None = None

    @property
    def late_cancel_seconds(self) -> float:
        """The window that is advertised: the largest of the workers'."""
        return self._pool.late_cancel_seconds if len(self._pool) else self._routes.window

    async def serve(self, context: Context) -> None:
        """Session, see env_service.proto. Raises Refusal for every status but OK."""
        stream = self._open(await self._first(context))
        try:
            await self._welcome(context)
            await first_of(self._hear(context, stream), self._tell(context, stream), stream.over())
        except _StreamBrokenError as error:
            log.info("%s broke: %s", stream, error)
        finally:
            self._confirmer.withdraw(stream, tuple(stream.pending))
            if self._streams.get(stream.session_id) is stream:
                del self._streams[stream.session_id]
            if self._closed is None and self.table.end(stream.session_id, stream.epoch, self._clock.now()):
                log.warning("%s ended without a goodbye, grace=%g s", stream, self.table.grace)
                self._ended.set()
            self._progress.set()

    async def keep_graces(self) -> None:
        """Have the runs of sessions cancelled when they are lost; never returns."""
        while True:
            self._ended.clear()
            if (next_loss := self.table.next_loss) is None:
                await self._ended.wait()
            else:
                await self._clock.sleep(max(0.0, next_loss - self._clock.now()))
                if self._clock.now() > next_loss + _STALL_SECONDS:
                    # It was this broker that stood still: hear first who has come back meanwhile.
                    await self._clock.sleep(_STALL_SECONDS)
            if lost := self.table.lost(self._clock.now()):
                self._canceller.lose_sessions(lost)
                self._progress.set()

    def expect(self, session_id: str) -> None:
        """A run names this session. Where it was lost, it is lost again unless it is opened in its grace."""
        if self.table.expect(session_id, self._clock.now()):
            log.warning(
                "session=%s was lost, and a run of it came; grace=%g s", short(session_id), self.table.grace
            )
            self._ended.set()

    async def settled(self) -> None:
        """Return once no session waits for its client to confirm what the broker has replied."""
        while any(
            route.state is RouteState.REPLIED and not route.worker_lost
            for route in self._routes.session_runs(self.table.open_sessions)
        ):
            self._progress.clear()
            await self._progress.wait()

    def close(self, refusal: Refusal) -> None:
        """End every stream with `refusal`, and take no more: the broker stops. No session is lost by that."""
        self._closed = refusal
        for stream in tuple(self._streams.values()):
            stream.end(refusal)

    async def _first(self, context: Context) -> SessionRequest:
        try:
            first = await within(self._clock, OPEN_SECONDS, _read(context))
        except TimeoutError:
            first = None
        if first is None or first.WhichOneof("frame") != "open":
            raise Refusal("INVALID_REQUEST", "the first frame must be open; send it at once", field="open")
        check_generation(first.open.protocol_generation)
        return first

    def _open(self, first: SessionRequest) -> ClientStream:
        if self._closed is not None:
            raise self._closed
        stream = ClientStream(first.open.session_id, first.open.epoch)
        try:
            self.table.open(stream.session_id, stream.epoch, self._clock.now())
        except InvalidSessionError as error:
            raise Refusal("INVALID_REQUEST", str(error), field="open") from None
        except SupersededError as error:
            raise Refusal("SESSION_SUPERSEDED", str(error)) from None
        except SessionsFullError as error:
            raise Refusal("TABLE_FULL", str(error), retry_after=self.table.grace) from None
        if (older := self._streams.get(stream.session_id)) is not None:
            older.end(
                Refusal(
                    "SESSION_SUPERSEDED",
                    f"session {short(stream.session_id)} was opened with epoch {stream.epoch}, this stream "
                    f"has {older.epoch}; leave the session to that one",
                )
            )
        self._streams[stream.session_id] = stream
        log.info("%s opened", stream)
        return stream

    async def _welcome(self, context: Context) -> None:
        opened = env_service_pb2.SessionOpened(
            instance=self._instance,
            capabilities=CAPABILITIES,
            session_grace_seconds=self.table.grace,
            late_cancel_seconds=self.late_cancel_seconds,
        )
        await _write(context, env_service_pb2.SessionResponse(opened=opened))

    async def _hear(self, context: Context, stream: ClientStream) -> None:
        """Take frames until the client ends its side, or is gone."""
        while (frame := await _read(context)) is not None:
            kind = frame.WhichOneof("frame")
            if stream.goodbye:
                raise _invalid(f"{kind} came after goodbye; open the session's next stream", kind)
            if kind == "confirm":
                await self._confirm(frame.confirm.request_ids, stream)
            elif kind == "goodbye":
                self.table.goodbye(stream.session_id, stream.epoch, self._clock.now())
                log.info("%s said goodbye", stream)
                stream.say_goodbye()
            elif kind == "open":
                raise _invalid("open came twice; open the session's next stream", kind)
            else:
                raise Refusal(
                    "INVALID_REQUEST",
                    f"{kind or 'an empty frame'} came, and this broker carries no runs in a session; use Run",
                    field=kind or "frame",
                    capability="session-runs",
                )
        if stream.goodbye:
            await asyncio.Event().wait()  # until `_tell` has told all

    async def _confirm(self, request_ids: Any, stream: ClientStream) -> None:
        if len(request_ids) > MAX_FRAME_IDS:
            raise Refusal(
                "INVALID_REQUEST",
                f"confirm has {len(request_ids)} request_ids, the limit is {MAX_FRAME_IDS}; send more frames",
                field="confirm.request_ids",
                value=len(request_ids),
                limit=MAX_FRAME_IDS,
            )
        for request_id in request_ids:
            try:
                check_request_id(request_id)
            except InvalidRequestIdError as error:
                raise _invalid(f"confirm: {error}", "confirm.request_ids") from None
        for request_id in request_ids:
            await stream.room()
            stream.pending.add(request_id)
            self._confirmer.confirm(request_id, stream)

    async def _tell(self, context: Context, stream: ClientStream) -> None:
        """Write answers; those that come while a frame is being written go with the next one."""
        while answers := await stream.next_answers():
            frame = env_service_pb2.ConfirmAnswers(answers=answers)
            await _write(context, env_service_pb2.SessionResponse(confirm_answers=frame))
            self._progress.set()


async def _read(context: Context) -> SessionRequest | None:
    """The next frame; None at the end."""
    try:
        frame: Any = await context.read()
    except DecodeError as error:
        raise _invalid(f"a frame cannot be decoded ({error}); use the stubs of envtrio.v1", "frame") from None
    return frame if isinstance(frame, env_service_pb2.SessionRequest) else None


async def _write(context: Context, frame: SessionResponse) -> None:
    try:
        await context.write(frame)
    except Exception as error:  # what gRPC raises when the stream is broken is not public
        raise _StreamBrokenError(str(error)) from error


def _invalid(message: str, field: str | None) -> Refusal:
    return Refusal("INVALID_REQUEST", message, field=field or "frame")
