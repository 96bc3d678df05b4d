"""The scripted worker's side of Session: records what the broker says there, and answers as it is told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
from envtrio.v1 import env_service_pb2

if TYPE_CHECKING:
    from collections.abc import Callable


class ScriptedConfirms:
    """Serves Session. Confirmations without a line are answered CONFIRMED.

    Attributes:
        opens: the first frames, of all streams.
        frames: the request_ids of each confirm frame, in the order in which they came.
        goodbyes: epochs whose stream ended with a goodbye.
        lines: answers by request_id, in turn; None is none.
        refusals: the codes with which the next streams end at once, in turn.
        reading: while it is not set, no frame behind the first is read.
    """

    def __init__(self, instance: str, changed: Callable[[], None]) -> None:
        self.opens: list[env_service_pb2.SessionOpen] = []
        self.frames: list[list[str]] = []
        self.goodbyes: list[int] = []
        self.lines: dict[str, list[env_service_pb2.ConfirmOutcome.ValueType | None]] = {}
        self.refusals: list[grpc.StatusCode] = []
        self.reading = asyncio.Event()
        self.reading.set()
        self._instance = instance
        self._changed = changed
        self._broken = asyncio.Event()

    @property
    def confirms(self) -> list[str]:
        """The request_ids of all frames."""
        return [run for frame in self.frames for run in frame]

    def break_off(self) -> None:
        """End the streams that are open."""
        self._broken.set()
        self._broken = asyncio.Event()

    def handler(self) -> Any:
        """What to serve."""
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
        opened = env_service_pb2.SessionOpened(instance=self._instance, capabilities=["sessions"])
        await context.write(env_service_pb2.SessionResponse(opened=opened))
        while True:
            await self.reading.wait()
            frame: Any = await context.read()
            if frame is grpc.aio.EOF:
                return None
            if frame.HasField("goodbye"):
                self.goodbyes.append(first.open.epoch)
                self._changed()
                return None
            self.frames.append(list(frame.confirm.request_ids))
            self._changed()
            if answers := [answer for run in self.frames[-1] if (answer := self._answer(run)) is not None]:
                told = env_service_pb2.ConfirmAnswers(answers=answers)
                await context.write(env_service_pb2.SessionResponse(confirm_answers=told))

    def _answer(self, run: str) -> env_service_pb2.ConfirmAnswer | None:
        lines = self.lines.get(run)
        line = lines.pop(0) if lines else env_service_pb2.CONFIRM_OUTCOME_CONFIRMED
        return None if line is None else env_service_pb2.ConfirmAnswer(request_id=run, outcome=line)
