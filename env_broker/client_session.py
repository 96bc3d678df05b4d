"""Sessions of clients: their streams, and what is due when one does not come back."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from envtrio.v1 import env_service_pb2
from envtrio.v1.env_service_pb2 import SessionRequest

from env_broker.client_reader import ClientReader
from env_broker.client_runs import ClientRuns
from env_broker.client_stream import ClientStream
from env_broker.clock import Clock, within
from env_broker.hello import check_generation
from env_broker.route import RouteState
from env_broker.session_frames import invalid, read
from env_broker.sessions import InvalidSessionError, SessionsFullError, SupersededError
from env_broker.status import Refusal, short

if TYPE_CHECKING:
    from envtrio.v1.env_service_pb2 import SessionOpen
    from grpc.aio import ServicerContext

    from env_broker.cancel import Canceller
    from env_broker.confirm import Confirmer
    from env_broker.pool import Pool
    from env_broker.routes import RouteTable
    from env_broker.run_carrier import RunCarrier
    from env_broker.session_frames import Frame
    from env_broker.sessions import SessionTable

    Context = ServicerContext[bytes, bytes]

log = logging.getLogger(__name__)

CAPABILITIES: Final = ("sessions", "session-runs")
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
        self._away: Final = asyncio.Event()
        self._progress: Final = asyncio.Event()
        self._closed: Refusal | None = None

    @property
    def late_cancel_seconds(self) -> float:
        """The window that is advertised: the largest of the workers'."""
        return self._pool.late_cancel_seconds if len(self._pool) else self._routes.window

    async def serve(self, context: Context, carrier: RunCarrier) -> None:
        """Session, see env_service.proto. Raises Refusal for every status but OK.

        Args:
            carrier: carries the runs that are opened in it.
        """
        opening, frames = await self._first(context)
        stream = self._open(opening)
        runs, talks = ClientRuns(stream.outbox, carrier), list[asyncio.Task[None]]()
        try:
            await self._welcome(context)
            talks += (
                asyncio.create_task(self._reader(stream, runs).read_on(context, frames)),
                asyncio.create_task(self._tell(context, stream)),
            )
            await asyncio.wait((stream.over, *talks), return_when=asyncio.FIRST_COMPLETED)
            for ended in (stream.over, *talks):
                if ended.done():
                    ended.result()
        except _StreamBrokenError as error:
            log.info("%s broke: %s", stream, error)
        finally:
            # However it ended; and no await before it.
            self._ended(stream, runs)
            for talk in talks:
                talk.cancel()
            await asyncio.gather(*talks, return_exceptions=True)
            await runs.gone()

    async def keep_graces(self) -> None:
        """Have the runs of sessions cancelled when they are lost; never returns."""
        while True:
            self._away.clear()
            if (next_loss := self.table.next_loss) is None:
                await self._away.wait()
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
            self._away.set()

    async def settled(self) -> None:
        """Return once no session waits for its client to confirm what the broker has replied."""
        while any(
            route.state is RouteState.REPLIED and not route.worker_lost
            for route in self._routes.session_runs(self.table.open_sessions)
        ):
            self._progress.clear()
            await self._progress.wait()

    def close(self, refusal: Refusal) -> None:
        """End every stream with `refusal`, once what its runs were to be told was told, and take no more: the
        broker stops. No session is lost by that."""
        self._closed = refusal
        for stream in tuple(self._streams.values()):
            stream.finish(refusal)

    async def _first(self, context: Context) -> tuple[SessionOpen, list[Frame]]:
        """The opening, and the frames that came with it."""
        try:
            frames = await within(self._clock, OPEN_SECONDS, read(context))
        except TimeoutError:
            frames = None
        first = frames[0] if frames else None
        if frames is None or not isinstance(first, SessionRequest) or not first.HasField("open"):
            raise invalid("the first frame must be open; send it at once", "open")
        check_generation(first.open.protocol_generation)
        return first.open, frames[1:]

    def _open(self, opening: SessionOpen) -> ClientStream:
        if self._closed is not None:
            raise self._closed
        stream = ClientStream(opening.session_id, opening.epoch)
        try:
            self.table.open(stream.session_id, stream.epoch, self._clock.now())
        except InvalidSessionError as error:
            raise invalid(str(error), "open") from None
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

    def _reader(self, stream: ClientStream, runs: ClientRuns) -> ClientReader:
        return ClientReader(stream, runs, table=self.table, confirmer=self._confirmer, clock=self._clock)

    async def _welcome(self, context: Context) -> None:
        opened = env_service_pb2.SessionOpened(
            instance=self._instance,
            capabilities=CAPABILITIES,
            session_grace_seconds=self.table.grace,
            late_cancel_seconds=self.late_cancel_seconds,
        )
        await _write(context, env_service_pb2.SessionResponse(opened=opened).SerializeToString())

    async def _tell(self, context: Context, stream: ClientStream) -> None:
        """Write what is due; what becomes due while a message is being written goes with the next one."""
        while (message := await stream.next_message()) is not None:
            await _write(context, message)
            stream.told()
            self._progress.set()

    def _ended(self, stream: ClientStream, runs: ClientRuns) -> None:
        runs.abandon()
        self._confirmer.withdraw(stream, tuple(stream.pending))
        if self._streams.get(stream.session_id) is stream:
            del self._streams[stream.session_id]
        if self._closed is None and self.table.end(stream.session_id, stream.epoch, self._clock.now()):
            log.warning("%s ended without a goodbye, grace=%g s", stream, self.table.grace)
            self._away.set()
        self._progress.set()


async def _write(context: Context, message: bytes) -> None:
    try:
        await context.write(message)
    except Exception as error:  # what gRPC raises when the stream is broken is not public
        raise _StreamBrokenError(str(error)) from error
