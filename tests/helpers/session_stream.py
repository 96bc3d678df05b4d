"""One stream of a session through the generated stub, frame by frame, and recorded."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc
from envtrio.v1 import env_service_pb2 as pb

from tests.helpers.history import ConfirmAnswered, ConfirmSent
from tests.helpers.stub_client import GENERATION, reason_of

if TYPE_CHECKING:
    from tests.helpers.history import History

SECONDS = 10.0


class SessionStream:
    """A stream that does what it is told. `opened` is the server's first frame."""

    def __init__(self, stub: Any, history: History) -> None:
        self.call = stub.Session()
        self.opened: pb.SessionOpened | None = None
        self._history = history

    async def open(self, session_id: str, epoch: int = 1, generation: int = GENERATION) -> SessionStream:
        """Open it and wait for the answer. AioRpcError if it is refused."""
        opening = pb.SessionOpen(session_id=session_id, epoch=epoch, protocol_generation=generation)
        await self.send(open=opening)
        frame = await self.read()
        assert frame is not None
        assert frame.HasField("opened")
        self.opened = frame.opened
        return self

    async def send(self, **frame: Any) -> None:
        """Send a frame, for instance `goodbye=pb.SessionGoodbye()`.

        A server may end the stream before it has read the frame: then reading says so, not this.
        """
        await self.send_message(pb.SessionRequest(**frame))

    async def send_message(self, message: pb.SessionRequest) -> None:
        """As `send`, for a message that is made already."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self.call.write(message)

    async def read(self) -> pb.SessionResponse | None:
        """The next message; None at the end."""
        async with asyncio.timeout(SECONDS):
            frame = await self.call.read()
        return frame if isinstance(frame, pb.SessionResponse) else None

    async def confirm(self, *runs: str) -> list[str]:
        """Confirm in one frame; the outcomes without their prefix, in the order of `runs`."""
        for run in runs:
            self._history.note(ConfirmSent, run)
        await self.send(confirm=pb.Confirm(request_ids=runs))
        outcomes: dict[str, str] = {}
        count = 0
        while count < len(runs):
            message = await self.read()
            assert message is not None
            for answer in (it for frame in (message, *message.more) for it in frame.confirm_answers.answers):
                count += 1
                name = pb.ConfirmOutcome.Name(answer.outcome).removeprefix("CONFIRM_OUTCOME_")
                outcomes[answer.request_id] = name
                self._history.note(ConfirmAnswered, answer.request_id, outcome=name)
        return [outcomes[run] for run in runs]

    async def status(self) -> tuple[str, str]:
        """Read to the end; the code, and the reason of its ErrorInfo."""
        try:
            while await self.read() is not None:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code().name, reason_of(error)
        return (await self.call.code()).name, ""

    async def goodbye(self) -> tuple[str, str]:
        """Say it, close this side, and read to the end."""
        await self.send(goodbye=pb.SessionGoodbye())
        await self.call.done_writing()
        return await self.status()

    def drop(self) -> None:
        """Break it off."""
        self.call.cancel()
