"""One Session stream that carries runs, between its opening and its end."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc
from envtrio.v1.env_service_pb2 import (
    ConfirmAnswers,
    RunAdmitted,
    SessionGoodbye,
    SessionOpen,
    SessionOpened,
    SessionRequest,
)
from google.protobuf.message import DecodeError

from env_client.call_status import CallStatus
from env_client.errors import shown_id
from env_client.lane_end import StreamEnd
from env_client.lane_frames import Opening, Outbox, decoded
from env_client.lane_run import LaneRun
from env_client.verdicts import VERDICTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_client.confirmations import Verdict
    from env_client.lane_frames import Frame
    from env_client.side_thread import SideThread

_T = TypeVar("_T")

_LOG: Final = logging.getLogger(__name__)

CAPABILITY: Final = "session-runs"
_JOIN_SECONDS: Final = 1.0
# In which a loop that stood still comes to what the server had sent it meanwhile.
_MOMENT_SECONDS: Final = 0.5
_BIG_BYTES: Final = 1024 * 1024  # Decoding more than this is not done on the event loop.


class LaneStream:
    """A Session stream of the running event loop; a task reads it, a task writes it.

    Runs that come before the server has opened it wait for that. If it turns out that it carries no runs, or
    cannot be opened, they are handed on; if it breaks, they end with that, and those that were never sent are
    handed on. Where it ends because the server stops, those of which nothing came were refused.

    Args:
        call: the call, whose requests are SessionRequests, and whose responses come serialized.
        opening: the first frame.
        open_seconds: how long the server may take to open it.
        side: decodes big messages, and has nothing else to do: all runs wait for it.
        hand_on: sends a run that it does not carry in another way; it is told why.
        ended: called once, when the stream is over.
    """

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[SessionRequest, bytes],
        opening: SessionOpen,
        open_seconds: float,
        side: SideThread,
        hand_on: Callable[[LaneRun, Opening, str], object],
        ended: Callable[[LaneStream, StreamEnd], object],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._call = call
        self._status = CallStatus(call)
        self._opening = opening
        self._side = side
        self._hand_on = hand_on
        self._ended = ended
        self._runs: dict[int, LaneRun] = {}
        self._answers: dict[str, asyncio.Future[Verdict | None]] = {}
        self._last_number = 0
        self._outbox = Outbox()
        self._news = asyncio.Event()
        self._opened: SessionOpened | None = None
        self._carries = False
        self._is_parting = False
        self._given_up: StreamEnd | None = None
        self._patience = self._loop.call_later(open_seconds, self._look_again, open_seconds)
        self._writer = _quiet(self._loop.create_task(self._write(), name="envtrio-lane-writer"))
        self._reader = _quiet(self._loop.create_task(self._read(), name="envtrio-lane-reader"))
        self._writer.add_done_callback(self._written)
        # Not in a `finally` of the task, which need not have begun when it is cancelled.
        self._reader.add_done_callback(self._over)

    @property
    def takes_runs(self) -> bool:
        """Whether it carries runs, or may come to."""
        return self._opened is None or self._carries

    @property
    def carries(self) -> bool:
        """Whether it is open and carries runs."""
        return self._carries and not self._is_parting

    @property
    def is_parting(self) -> bool:
        """Whether the client wants no more of it."""
        return self._is_parting

    @property
    def was_opened(self) -> bool:
        """Whether the server has opened it."""
        return self._opened is not None

    def carry(self, opening: Opening) -> LaneRun:
        """Begin a run. Only while it takes runs."""
        self._last_number += 1
        run = LaneRun(self._loop, self, self._last_number, opening.deadline)
        self._runs[self._last_number] = run
        self._outbox.open(self._last_number, opening)
        self._news.set()
        return run

    def credit(self, number: int, run: LaneRun, *, pressing: bool) -> None:
        """Allow the server to send what `run` claims; at once, or with whatever else is said."""
        self._outbox.credit(number, run, pressing=pressing)
        if pressing:
            self._news.set()

    def leave(self, number: int) -> None:
        """Give up a run; what still comes of it is dropped."""
        if self._runs.pop(number, None) is not None:
            self._outbox.leave(number)
            self._news.set()

    def confirm(self, request_id: str) -> asyncio.Future[Verdict | None]:
        """Confirm an episode. Only while it carries runs; `forget` it in the end.

        Returns:
            What the server says; None where that is not the last word, or the stream is over.
        """
        answer = self._answers[request_id] = self._loop.create_future()
        self._outbox.confirm(request_id)
        self._news.set()
        return answer

    def forget(self, request_id: str) -> None:
        """Nobody waits for what is said of that confirmation; it is not sent, unless it has left."""
        self._answers.pop(request_id, None)
        self._outbox.withdraw(request_id)

    async def part(self, timeout: float) -> None:
        """Say goodbye, and wait at most `timeout` seconds for the server to end it. No run comes any more."""
        self._is_parting = True
        if self._opened is None:
            return
        self._news.set()
        await asyncio.wait([self._reader], timeout=timeout)

    async def join(self) -> None:
        """Wait until it is over; bounded."""
        await asyncio.wait([self._reader, self._writer], timeout=_JOIN_SECONDS)

    def give_up(self, end: StreamEnd) -> None:
        """End it at once. Idempotent."""
        self._given_up = self._given_up or end
        self._call.cancel()

    def _look_again(self, open_seconds: float) -> None:
        # Where the loop stood still, this timer comes before what the server had said in time.
        self._patience = self._loop.call_later(_MOMENT_SECONDS, self._lose_patience, open_seconds)

    def _lose_patience(self, open_seconds: float) -> None:
        self.give_up(StreamEnd(f"the server did not open it within {open_seconds} s"))

    async def _read(self) -> StreamEnd:
        """Read it to its end. What that was; CancelledError if the loop is torn down."""
        try:
            while (frames := await self._frames()) is not None:
                self._take(frames)
                del frames  # Or the last message would be held until the next one comes.
            return StreamEnd("the server ended it")
        except asyncio.CancelledError:
            if self._given_up is None:
                raise
            return self._given_up
        except grpc.RpcError as error:
            return StreamEnd.of(await self._status.behind(error))
        except DecodeError as error:
            return StreamEnd(f"what the server sent cannot be decoded: {error}", grpc.StatusCode.INTERNAL)

    async def _frames(self) -> list[Frame] | None:
        message: Any = await self._call.read()
        if message is grpc.aio.EOF:
            return None
        return await self._side.do(decoded, message) if len(message) > _BIG_BYTES else decoded(message)

    def _take(self, frames: list[Frame]) -> None:
        for number, content in frames:
            run = self._runs.get(number)  # None for one that was left, too.
            if isinstance(content, bytes):
                if run is not None:
                    run.append(content)
            elif isinstance(content, ConfirmAnswers):
                for answer in content.answers:
                    self._answered(answer.request_id, VERDICTS.get(answer.outcome))
            elif isinstance(content, SessionOpened):
                self._open(content)
            elif isinstance(content, RunAdmitted):
                if run is not None:
                    run.nothing_came = False
            elif run is not None:
                del self._runs[number]
                self._outbox.forget(number)
                run.end(content)

    def _open(self, opened: SessionOpened) -> None:
        if self._opened is not None:
            return
        self._opened = opened
        self._patience.cancel()
        self._carries = CAPABILITY in opened.capabilities
        _LOG.debug("lane=%s: open, carries=%s", shown_id(self._opening.session_id), self._carries)
        if self._carries:
            self._news.set()
        else:
            self._hand_all_on("the server carries no runs in a session")

    def _answered(self, request_id: str, verdict: Verdict | None) -> None:
        waiting = self._answers.get(request_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(verdict)

    def _hand_all_on(self, why: str) -> None:
        for number, opening in self._outbox.take_openings().items():
            self._hand_on(self._runs.pop(number), opening, why)

    async def _write(self) -> None:
        # One message at a time: what becomes due while it is on its way leaves together.
        try:
            await self._call.write(SessionRequest(open=self._opening))
            while (request := await self._next_request()) is not None:
                await self._call.write(request)
                del request
            await self._call.write(SessionRequest(goodbye=SessionGoodbye()))
            await self._call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass  # The call is over; the reader hears why.

    async def _next_request(self) -> SessionRequest | None:
        """What is due, once there is something; None: only the goodbye."""
        while True:
            self._news.clear()
            if self._carries and (request := self._outbox.next_message(self._loop.time())) is not None:
                return request
            if self._is_parting:
                return None
            await self._news.wait()

    def _written(self, writer: asyncio.Task[None]) -> None:
        if writer.cancelled():
            self.give_up(StreamEnd("its task was cancelled", is_torn=True))
        elif (error := writer.exception()) is not None:
            _LOG.error("lane=%s: cannot be written", shown_id(self._opening.session_id), exc_info=error)
            self.give_up(StreamEnd(f"it cannot be written: {error}", grpc.StatusCode.INTERNAL))
        elif not self._is_parting:
            # Changes nothing where the call is over. Else its runs would wait for what is never sent.
            self.give_up(StreamEnd("nothing more can be sent in it"))

    def _over(self, reader: asyncio.Task[StreamEnd]) -> None:
        end = self._end_of(reader)
        self._patience.cancel()
        self._writer.cancel()
        self._call.cancel()
        if not (end.is_torn or self._is_parting or end.refusal):
            self._hand_all_on(end.why)
        self._ended(self, end)
        runs, self._runs = self._runs, {}
        for run in runs.values():
            run.end(end.status_of(nothing_came=run.nothing_came))
        for request_id in tuple(self._answers):
            self._answered(request_id, None)

    def _end_of(self, reader: asyncio.Task[StreamEnd]) -> StreamEnd:
        if reader.cancelled():
            return StreamEnd("its task was cancelled", is_torn=True)
        error = reader.exception()
        if error is None:
            return reader.result()
        _LOG.error("lane=%s: cannot be read", shown_id(self._opening.session_id), exc_info=error)
        return StreamEnd(f"it cannot be read: {error}", grpc.StatusCode.INTERNAL)


def _quiet(task: asyncio.Task[_T]) -> asyncio.Task[_T]:
    # Who closes a loop with tasks pending is told of each when it is collected. These are not the caller's,
    # and in a client that was not closed they are pending always. asyncio itself does so for what it gathers.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task
