"""EnvService.Session on a worker: confirmations and their answers, and what follows when a client is lost."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, TypeAlias

from envtrio.v1 import env_service_pb2 as pb
from envtrio.v1 import errors_pb2
from google.protobuf.message import DecodeError

from env_worker.domain.runs import ConfirmOutcome, TableFullError
from env_worker.domain.sessions import InvalidSessionError, SessionSupersededError, SessionTable
from env_worker.endings import full
from env_worker.request import check_generation, check_request_id
from env_worker.stall import Stall
from env_worker.status import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import grpc

    from env_worker.runner import Runner

logger = logging.getLogger(__name__)

CAPABILITY: Final = "sessions"
MAX_CONFIRMED: Final = 1_024
"""Most request_ids in one Confirm frame."""
OPEN_SECONDS: Final = 10.0
"""How long a stream may take to send its first frame."""
GOODBYE_SECONDS: Final = 0.2
"""A client ends its side of the stream right behind its goodbye; one that does not is not waited for."""

ANSWERS: Final[Mapping[ConfirmOutcome, pb.ConfirmOutcome.ValueType]] = {
    ConfirmOutcome.CONFIRMED: pb.CONFIRM_OUTCOME_CONFIRMED,
    ConfirmOutcome.DISCARDED: pb.CONFIRM_OUTCOME_DISCARDED,
    ConfirmOutcome.UNKNOWN: pb.CONFIRM_OUTCOME_UNKNOWN,
}

_Context: TypeAlias = "grpc.aio.ServicerContext[pb.SessionRequest, pb.SessionResponse]"


class _Stream:
    """One stream of a session: who it is, and the order to end it."""

    def __init__(self, session_id: str, epoch: int) -> None:
        self.session_id: Final = session_id
        self.epoch: Final = epoch
        self.goodbye = False
        self.over: Final[asyncio.Future[Refusal]] = asyncio.get_running_loop().create_future()
        """Done when the server ends the stream: with what the client hears."""

    def end(self, refusal: Refusal) -> None:
        """End it from the server's side. The first end counts."""
        if not self.over.done():
            self.over.set_result(refusal)


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
            capabilities=[CAPABILITY],
            session_grace_seconds=grace_seconds,
            late_cancel_seconds=late_cancel_seconds,
        )
        self._runner: Final = runner
        self._clock: Final = clock
        self._loop: Final = asyncio.get_running_loop()
        self._streams: Final[dict[str, _Stream]] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self._stall: Final = Stall()
        self._closed: Final[asyncio.Future[None]] = self._loop.create_future()

    async def carry(self, context: _Context) -> None:
        """Serve one stream to its end. Returns after a goodbye; Refusal says why it ends otherwise."""
        stream = self._open(await self._first(context))
        # Reading goes on in a task of its own, so that a newer epoch can end a stream that says nothing.
        frames = asyncio.ensure_future(self._frames(stream, context))
        try:
            await asyncio.wait((frames, stream.over), return_when=asyncio.FIRST_COMPLETED)
            if not frames.done():
                raise stream.over.result()
            frames.result()
        finally:
            # However it ended, by whatever exception; and no await before it.
            self._ended(stream)
            frames.cancel()
            await asyncio.gather(frames, return_exceptions=True)

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
        """The worker ends: so do the streams, and no session is lost for that."""
        if not self._closed.done():
            self._closed.set_result(None)
        self._arm()
        for stream in self._streams.values():
            stream.end(_draining())

    async def _first(self, context: _Context) -> object:
        reading = asyncio.ensure_future(_read(context))
        try:
            await asyncio.wait(
                (reading, self._closed), timeout=OPEN_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if reading.done():
                return reading.result()
            if self._closed.done():
                raise _draining()
            raise _invalid(f"no frame came within {OPEN_SECONDS:g} s; send `open` first, at once")
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _open(self, frame: object) -> _Stream:
        if not isinstance(frame, pb.SessionRequest) or not frame.HasField("open"):
            raise _invalid("the first frame of a session must be `open`; send it first, once")
        opening = frame.open
        check_generation(opening.protocol_generation)
        if self._closed.done():
            raise _draining()
        try:
            self.table.open(opening.session_id, opening.epoch, self._clock())
        except InvalidSessionError as error:
            raise _invalid(str(error)) from error
        except SessionSupersededError as error:
            raise Refusal(errors_pb2.ERROR_REASON_SESSION_SUPERSEDED, str(error)) from error
        except TableFullError as error:
            raise full(errors_pb2.ERROR_REASON_TABLE_FULL, error) from error
        stream = _Stream(opening.session_id, opening.epoch)
        if (older := self._streams.get(stream.session_id)) is not None:
            older.end(_superseded(older, stream))
        self._streams[stream.session_id] = stream
        self._arm()
        return stream

    async def _frames(self, stream: _Stream, context: _Context) -> None:
        """Answer frame after frame. What is not answered yet is not read on: no queue can grow."""
        await context.write(pb.SessionResponse(opened=self._opened))
        while isinstance(frame := await _read(context), pb.SessionRequest):
            match frame.WhichOneof("frame"):
                case "confirm":
                    await context.write(pb.SessionResponse(confirm_answers=self._confirm(frame.confirm)))
                case "goodbye":
                    stream.goodbye = True
                    await self._half_close(stream, context)
                    return
                case "open":
                    raise _invalid("a second `open`; a stream opens its session once")
                case "open_run" | "run_credit" as name:
                    raise _invalid(
                        f"`{name}` without the capability session-runs, which this worker does not have; "
                        "send the run by Run",
                    )
                case _:
                    raise _invalid("a frame without content; send `confirm` or `goodbye`")
        raise _invalid(
            f"session {stream.session_id[:8]} was half-closed without `goodbye`; say it, or come back with "
            f"the next epoch within {self.table.grace_seconds:g} s"
        )

    async def _half_close(self, stream: _Stream, context: _Context) -> None:
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                frame = await _read(context)
        except TimeoutError:
            return
        if isinstance(frame, pb.SessionRequest):
            stream.goodbye = False
            raise _invalid(f"`{frame.WhichOneof('frame')}` behind `goodbye`, which must be the last frame")

    def _confirm(self, confirm: pb.Confirm) -> pb.ConfirmAnswers:
        request_ids = confirm.request_ids
        if len(request_ids) > MAX_CONFIRMED:
            raise _invalid(
                f"`confirm` has {len(request_ids)} request_ids, the limit is {MAX_CONFIRMED}; send several",
                "confirm.request_ids",
            )
        for request_id in request_ids:  # all of them first: a frame counts as a whole or not at all
            try:
                check_request_id(request_id)
            except Refusal as refusal:
                raise _invalid(refusal.message, "confirm.request_ids") from refusal
        return pb.ConfirmAnswers(
            answers=[
                pb.ConfirmAnswer(request_id=request_id, outcome=ANSWERS[self._runner.confirm(request_id)])
                for request_id in request_ids
            ]
        )

    def _ended(self, stream: _Stream) -> None:
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


async def _read(context: _Context) -> object:
    """The next frame. Refusal if it cannot be decoded, where gRPC itself would say UNKNOWN."""
    try:
        frame: object = await context.read()
    except DecodeError as error:
        raise _invalid(
            f"a frame is no SessionRequest ({error}); check that the client was made from the same protos"
        ) from error
    return frame


def _invalid(message: str, field: str = "frame") -> Refusal:
    return Refusal(errors_pb2.ERROR_REASON_INVALID_REQUEST, message, field=field)


def _draining() -> Refusal:
    return Refusal(
        errors_pb2.ERROR_REASON_DRAINING, "the worker ends; open the session with the next epoch later"
    )


def _superseded(older: _Stream, newer: _Stream) -> Refusal:
    return Refusal(
        errors_pb2.ERROR_REASON_SESSION_SUPERSEDED,
        f"epoch {newer.epoch} of session {older.session_id[:8]} has taken over from epoch {older.epoch}; do "
        "not reconnect this one",
    )
