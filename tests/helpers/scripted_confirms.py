"""The scripted worker's side of Session: records what the broker says there, and answers as it is told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
from envtrio.v1 import env_service_pb2

from tests.helpers.scripted_runs import ScriptedRuns

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.scripted_runs import Play


class ScriptedConfirms:
    """Serves Session. Confirmations without a line are answered CONFIRMED.

    Attributes:
        opens: the first frames, of all streams.
        frames: the request_ids of each confirm frame, in the order in which they came.
        goodbyes: epochs whose stream ended with a goodbye.
        lines: answers by request_id, in turn; None is none.
        refusals: the codes with which the next streams end at once, in turn.
        apart: whether each answer is a frame of its own, all in one message.
        reading: while it is not set, no frame behind the first is read.
        capabilities: what a stream is opened with.
        opening: while it is not set, no stream is opened.
        streams: the runs of each stream, in the order in which they were opened.
    """

    def __init__(self, instance: str, changed: Callable[[], None]) -> None:
        self.opens: list[env_service_pb2.SessionOpen] = []
        self.frames: list[list[str]] = []
        self.goodbyes: list[int] = []
        self.lines: dict[str, list[env_service_pb2.ConfirmOutcome.ValueType | None]] = {}
        self.refusals: list[grpc.StatusCode] = []
        self.apart = False
        self.reading = asyncio.Event()
        self.reading.set()
        self.capabilities = ["sessions"]
        self.opening = asyncio.Event()
        self.opening.set()
        self.streams: list[ScriptedRuns] = []
        self._instance = instance
        self._changed = changed
        self._play: Play | None = None
        self._broken = asyncio.Event()

    @property
    def confirms(self) -> list[str]:
        """The request_ids of all frames."""
        return [run for frame in self.frames for run in frame]

    def break_off(self) -> None:
        """End the streams that are open."""
        self._broken.set()
        self._broken = asyncio.Event()

    def handler(self, play: Play | None = None) -> Any:
        """What to serve; with what to do with the runs that come in a stream, or without that capability."""
        self._play = play
        self.capabilities += ["session-runs"] if play is not None else []
        return grpc.stream_stream_rpc_method_handler(
            self._serve,
            env_service_pb2.SessionRequest.FromString,
            env_service_pb2.SessionResponse.SerializeToString,
        )

    async def _serve(self, _: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        broken = asyncio.create_task(self._broken.wait())
        talk = asyncio.create_task(self._talk(context))
        try:
            await asyncio.wait({broken, talk}, return_when=asyncio.FIRST_COMPLETED)
            code = talk.result() if talk.done() else grpc.StatusCode.UNAVAILABLE
        finally:
            for task in (broken, talk):
                task.cancel()
            await asyncio.gather(broken, talk, return_exceptions=True)
        if code is not None:
            await context.abort(code, "scripted")

    async def _talk(self, context: grpc.aio.ServicerContext[Any, Any]) -> grpc.StatusCode | None:
        """The code with which the stream ends, None for OK."""
        first: Any = await context.read()
        self.opens.append(first.open)
        self._changed()
        if self.refusals:
            return self.refusals.pop(0)
        await self.opening.wait()
        opened = env_service_pb2.SessionOpened(instance=self._instance, capabilities=self.capabilities)
        await context.write(env_service_pb2.SessionResponse(opened=opened))
        runs = ScriptedRuns(self._play, context)
        self.streams.append(runs)
        try:
            return await self._listen(context, first.open.epoch, runs)
        finally:
            await runs.close()

    async def _listen(
        self, context: grpc.aio.ServicerContext[Any, Any], epoch: int, runs: ScriptedRuns
    ) -> grpc.StatusCode | None:
        while True:
            await self.reading.wait()
            message: Any = await context.read()
            if message is grpc.aio.EOF:
                return None
            assert not message.more or "session-runs" in self.capabilities, "it never said it would see them"
            for frame in (message, *message.more):
                if runs.take(frame):
                    continue
                if frame.HasField("goodbye"):
                    self.goodbyes.append(epoch)
                    self._changed()
                    return None
                self.frames.append(list(frame.confirm.request_ids))
                self._changed()
                answers = [answer for run in self.frames[-1] if (answer := self._answer(run)) is not None]
                if answers:
                    await runs.write(self._answered(answers))

    def _answered(self, answers: list[env_service_pb2.ConfirmAnswer]) -> env_service_pb2.SessionResponse:
        first, *more = (
            env_service_pb2.SessionResponse(confirm_answers=env_service_pb2.ConfirmAnswers(answers=part))
            for part in ([[answer] for answer in answers] if self.apart else [answers])
        )
        first.more.extend(more)
        return first

    def _answer(self, run: str) -> env_service_pb2.ConfirmAnswer | None:
        lines = self.lines.get(run)
        line = lines.pop(0) if lines else env_service_pb2.CONFIRM_OUTCOME_CONFIRMED
        return None if line is None else env_service_pb2.ConfirmAnswer(request_id=run, outcome=line)
