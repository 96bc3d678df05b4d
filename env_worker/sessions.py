"""EnvService.Session on a worker: which stream owns a session, and what follows when a client is lost."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from envtrio.v1 import env_service_pb2 as pb
from envtrio.v1 import errors_pb2

from env_worker import session_runs
from env_worker.domain.runs import TableFullError
from env_worker.domain.sessions import InvalidSessionError, SessionSupersededError, SessionTable
from env_worker.endings import full
from env_worker.request import check_generation
from env_worker.session_frames import frames_of, invalid, read_message
from env_worker.session_stream import SessionStream
from env_worker.stall import Stall
from env_worker.status import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_worker.entrance import Entrance
    from env_worker.runner import Runner
    from env_worker.session_frames import Context

logger = logging.getLogger(__name__)

CAPABILITIES: Final = ("sessions", session_runs.CAPABILITY)
OPEN_SECONDS: Final = 10.0
"""How long a stream may take to send its first frame."""


class Sessions:
    """The sessions of a worker, their streams and the timer that loses them. For one event loop.

    Args:
        runner: whose runs are confirmed, and ended with their session.
        instance: the worker process, told to who opens a session.
        grace_seconds: how long a session may be without a stream.
        clock: monotonic seconds.
    """

    def __init__(
        self, runner: Runner, *, instance: str, grace_seconds: float, clock: Callable[[], float]
    ) -> None:
        late_cancel_seconds = runner.table.late_cancel_seconds
        self.table: Final = SessionTable(
            grace_seconds=grace_seconds, remember_seconds=2 * late_cancel_seconds
        )
        self._opened: Final = pb.SessionOpened(
            instance=instance,
            capabilities=CAPABILITIES,
            session_grace_seconds=grace_seconds,
            late_cancel_seconds=late_cancel_seconds,
        )
        self._runner: Final = runner
        self._clock: Final = clock
        self._loop: Final = asyncio.get_running_loop()
        self._streams: Final[dict[str, SessionStream]] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self._stall: Final = Stall()
        self._closed: Final[asyncio.Future[None]] = self._loop.create_future()

    async def carry(self, context: Context, entrance: Entrance) -> None:
        """Serve one stream to its end. Returns after a goodbye; Refusal says why it ends otherwise.

        Args:
            entrance: where the runs go in that the stream opens.
        """
        frames = frames_of(await self._first(context))
        stream = self._open(next(frames), entrance)
        try:
            await stream.carry(context, frames)
        finally:
            # However it ended, by whatever exception; and no await before it.
            self._ended(stream)
            await stream.close()

    def expire(self) -> None:
        """Lose the sessions whose grace is over. Runs by itself; a test with a clock of its own calls it."""
        now = self._clock()
        # If it was this worker that stood still, who has come back meanwhile is heard first.
        if not self._stall.holds(self.table.next_expiry, now):
            for session_id in self.table.expire(now):
                ended = self._runner.lose_session(session_id)
                logger.info("session=%s reason=SESSION_LOST %d runs ended with it", session_id[:8], ended)
        self._arm()

    def named(self, session_id: str) -> None:
        """A run of that session was admitted. If the session was lost, it must come back within a grace, or
        this run is lost too. Call it in the same step as the admission."""
        if self.table.named(session_id, self._clock()):
            logger.info("session=%s was lost and has a new run, grace begins again", session_id[:8])
            self._arm()

    def close(self) -> None:
        """The worker ends: so do the streams, when their clients have heard how their runs ended, and no
        session is lost for that. Call it when no run is under way any more."""
        if not self._closed.done():
            self._closed.set_result(None)
        self._arm()
        for stream in self._streams.values():
            stream.end(_draining(), farewell=True)

    async def _first(self, context: Context) -> pb.SessionRequest:
        reading = asyncio.ensure_future(read_message(context))
        try:
            await asyncio.wait(
                (reading, self._closed), timeout=OPEN_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if reading.done():
                if (message := reading.result()) is not None and message.HasField("open"):
                    return message
                raise invalid("the first frame of a session must be `open`; send it first, once")
            if self._closed.done():
                raise _draining()
            raise invalid(f"no frame came within {OPEN_SECONDS:g} s; send `open` first, at once")
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _open(self, frame: pb.SessionRequest, entrance: Entrance) -> SessionStream:
        opening = frame.open
        check_generation(opening.protocol_generation)
        if self._closed.done():
            raise _draining()
        try:
            self.table.open(opening.session_id, opening.epoch, self._clock())
        except InvalidSessionError as error:
            raise invalid(str(error)) from error
        except SessionSupersededError as error:
            raise Refusal(errors_pb2.ERROR_REASON_SESSION_SUPERSEDED, str(error)) from error
        except TableFullError as error:
            raise full(errors_pb2.ERROR_REASON_TABLE_FULL, error) from error
        stream = SessionStream(
            opening.session_id,
            opening.epoch,
            self._opened,
            confirm=self._runner.confirm,
            entrance=entrance,
        )
        if (older := self._streams.get(stream.session_id)) is not None:
            older.end(_superseded(older, stream))
        self._streams[stream.session_id] = stream
        self._arm()
        return stream

    def _ended(self, stream: SessionStream) -> None:
        stream.give_up()
        if self._streams.get(stream.session_id) is stream:
            del self._streams[stream.session_id]
        end = self.table.goodbye if stream.goodbye else self.table.stream_ended
        if end(stream.session_id, stream.epoch, self._clock()):
            how = "said goodbye" if stream.goodbye else "its stream ended without a goodbye"
            logger.info("session=%s epoch=%d %s", stream.session_id[:8], stream.epoch, how)
        self._arm()

    def _arm(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if not self._closed.done() and (due := self.table.next_expiry) is not None:
            delay = self._stall.next_look(due) - self._clock()
            self._expiry = self._loop.call_later(max(0.0, delay), self.expire)


def _draining() -> Refusal:
    return Refusal(
        errors_pb2.ERROR_REASON_DRAINING, "the worker ends; open the session with the next epoch later"
    )


def _superseded(older: SessionStream, newer: SessionStream) -> Refusal:
    return Refusal(
        errors_pb2.ERROR_REASON_SESSION_SUPERSEDED,
        f"epoch {newer.epoch} of session {older.session_id[:8]} has taken over from epoch {older.epoch}; do "
        "not reconnect this one",
    )
