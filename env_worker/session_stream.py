"""One stream of a session: its frames are taken one by one, and one writer sends what they lead to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from envtrio.v1 import env_service_pb2 as pb
from envtrio.v1 import errors_pb2

from env_worker.domain.runs import ConfirmOutcome
from env_worker.request import check_request_id
from env_worker.session_bounds import MAX_CONFIRMED, too_many_confirmed
from env_worker.session_frames import frames_of, invalid, read_message
from env_worker.session_outbox import Outbox
from env_worker.session_runs import SessionRuns
from env_worker.status import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from env_worker.entrance import Entrance
    from env_worker.session_frames import Context

GOODBYE_SECONDS: Final = 0.2
"""A client ends its side of the stream right behind its goodbye; one that does not is not waited for."""
FAREWELL_SECONDS: Final = 0.5
"""How long a client may take to read what is left when the worker ends."""
TURN: Final = 1_024
"""After so much of one message others have their turn, counted in what it costs to confirm one id."""
OPEN_COST: Final = TURN // 32
"""What it costs to open a run, without its request."""
BYTES_AT_COST: Final = 128 * 1024 // TURN
"""So many bytes of a request cost as much as an id."""

ANSWERS: Final[Mapping[ConfirmOutcome, pb.ConfirmOutcome.ValueType]] = {
    ConfirmOutcome.CONFIRMED: pb.CONFIRM_OUTCOME_CONFIRMED,
    ConfirmOutcome.DISCARDED: pb.CONFIRM_OUTCOME_DISCARDED,
    ConfirmOutcome.UNKNOWN: pb.CONFIRM_OUTCOME_UNKNOWN,
}


class SessionStream:
    """One stream of a session: who it is, what it carries, and the order to end it. For one event loop.

    Args:
        opened: the answer to `open`.
        confirm: makes a delivery final, and says what became of the run.
        entrance: where the runs go in that it opens.
    """

    def __init__(
        self,
        session_id: str,
        epoch: int,
        opened: pb.SessionOpened,
        *,
        confirm: Callable[[str], ConfirmOutcome],
        entrance: Entrance,
    ) -> None:
        self.session_id: Final = session_id
        self.epoch: Final = epoch
        self.goodbye = False
        """Whether the client has said it, and nothing behind it."""
        self._opened: Final = opened
        self._ended: Final[asyncio.Future[Refusal]] = asyncio.get_running_loop().create_future()
        """Done when the server ends the stream: with what the client hears."""
        self._farewell = False
        self._confirm: Final = confirm
        self._outbox: Final = Outbox()
        self._runs: Final = SessionRuns(entrance, self._outbox)
        self._due: Final = asyncio.Event()
        self._outbox.on_due = self._due.set
        self._room: Final = asyncio.Event()
        self._finishing = False
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    def end(self, refusal: Refusal, *, farewell: bool = False) -> None:
        """End it from the server's side. The first end counts.

        Args:
            farewell: the client gets first what is due, its runs' ends above all, if it reads them soon.
        """
        if not self._ended.done():
            self._farewell = farewell
            self._ended.set_result(refusal)

    async def carry(self, context: Context, frames: Iterator[pb.SessionRequest]) -> None:
        """Serve it to its end. Returns after a goodbye; Refusal says why it ends otherwise. Call `give_up` at
        once then, and `close`.

        Args:
            frames: those that came with `open`.
        """
        self._outbox.put(pb.SessionResponse(opened=self._opened).SerializeToString())
        # Tasks of their own, so that a newer epoch can end a stream that says nothing, or does not read.
        reading = asyncio.create_task(self._read(context, frames))
        writing = asyncio.create_task(self._write(context))
        self._tasks = (reading, writing)
        await asyncio.wait((reading, writing, self._ended), return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            if task.done():
                task.result()
        # Not what comes of it later: a client that only half-closes meanwhile has not said goodbye.
        parts = reading.done()
        if parts:
            self._finish()
            await asyncio.wait((writing, self._ended), return_when=asyncio.FIRST_COMPLETED)
        if self._farewell:
            self._finish()
            await asyncio.wait((writing,), timeout=FAREWELL_SECONDS)
            if not writing.done():
                raise _untold()
        if parts and writing.done():
            return writing.result()
        raise self._ended.result()

    def give_up(self) -> None:
        """The stream is over: so are the runs that it carries. At once, with no await."""
        self._runs.give_up()

    async def close(self) -> None:
        """End what is still under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _finish(self) -> None:
        """Let the writer end when all is written. Of the runs that are only their ends."""
        self.give_up()
        self._finishing = True
        self._due.set()

    async def _write(self, context: Context) -> None:
        """The one writer: what becomes due during a write leaves with the next one."""
        while True:
            self._due.clear()
            message = self._outbox.next_message()
            if not self._outbox.full:
                self._room.set()
            if message is not None:
                await context.write(message)
                self._outbox.written()
                del message
            elif self._finishing:
                return
            else:
                await self._due.wait()

    async def _read(self, context: Context, frames: Iterator[pb.SessionRequest]) -> None:
        """Take frame after frame. While too much waits to be written nothing is read: no queue can grow."""
        await self._take(frames)
        while not self.goodbye:
            if (message := await read_message(context)) is None:
                raise invalid(
                    f"session {self.session_id[:8]} was half-closed without `goodbye`; say it, or come back "
                    f"with the next epoch within {self._opened.session_grace_seconds:g} s"
                )
            await self._take(frames_of(message))
            del message
        await self._half_close(context)

    async def _take(self, frames: Iterator[pb.SessionRequest]) -> None:
        done = 0
        for frame in frames:
            name = frame.WhichOneof("frame")
            if self.goodbye:
                self.goodbye = False
                raise invalid(f"`{name}` behind `goodbye`, which must be the last frame")
            match name:
                case "open_run":
                    self._outbox.joins = True  # who opens runs knows `more`
                    done += OPEN_COST + await self._runs.open(frame.open_run) // BYTES_AT_COST
                case "run_credit":
                    self._runs.credit(frame.run_credit)
                case "leave_run":
                    self._runs.leave(frame.leave_run)
                case "confirm":
                    answers = self._answers(frame.confirm)
                    self._outbox.put(pb.SessionResponse(confirm_answers=answers).SerializeToString())
                    done += len(answers.answers)
                case "goodbye":
                    self.goodbye = True
                case "open":
                    raise invalid("a second `open`; a stream opens its session once")
                case _:
                    raise invalid("a frame without content; send `open_run`, `confirm` or `goodbye`")
            if done >= TURN:
                done = 0
                await asyncio.sleep(0)
            while self._outbox.full:
                self._room.clear()
                await self._room.wait()

    async def _half_close(self, context: Context) -> None:
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                message = await read_message(context)
        except TimeoutError:
            return
        if message is not None:
            await self._take(frames_of(message))

    def _answers(self, confirm: pb.Confirm) -> pb.ConfirmAnswers:
        request_ids = confirm.request_ids
        if len(request_ids) > MAX_CONFIRMED:
            raise too_many_confirmed(len(request_ids))
        for request_id in request_ids:  # all of them first: a frame counts as a whole or not at all
            try:
                check_request_id(request_id)
            except Refusal as refusal:
                raise invalid(refusal.message, "confirm.request_ids") from refusal
        return pb.ConfirmAnswers(
            answers=[
                pb.ConfirmAnswer(request_id=request_id, outcome=ANSWERS[self._confirm(request_id)])
                for request_id in request_ids
            ]
        )


def _untold() -> Refusal:
    """Not DRAINING, which says that each run that had begun was told its end."""
    return Refusal(
        errors_pb2.ERROR_REASON_WORKER_LOST,
        f"the worker ends, and how its runs ended was not read within {FAREWELL_SECONDS:g} s; open the "
        "session with the next epoch later",
    )
