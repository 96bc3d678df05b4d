"""What stands at both sides of a lane's stream in a test: its call, and its lane."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from envtrio.v1 import env_service_pb2 as pb

from env_client.lane_frames import Opening
from env_client.lane_stream import CAPABILITY, LaneStream
from env_client.side_thread import SideThread

if TYPE_CHECKING:
    from env_client.lane_end import StreamEnd
    from env_client.lane_run import LaneRun

OPENED: Final = pb.SessionResponse(opened=pb.SessionOpened(capabilities=[CAPABILITY]))


async def settled() -> None:
    """What can happen has happened."""
    for _ in range(20):
        await asyncio.sleep(0)


class LaneCall:
    """A call. A write waits while `reads` is not set, and fails with `breaks`; a read takes `turns` more."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.reads.set()
        self.breaks: BaseException | None = None
        self.written: list[pb.SessionRequest] = []
        self.turns = 0
        self._is_over = self._is_cancelled = False
        self._said: asyncio.Queue[pb.SessionResponse | BaseException] = asyncio.Queue()

    def say(self, said: pb.SessionResponse | BaseException) -> None:
        """The server says something; an exception is the end of the call."""
        self._is_over |= isinstance(said, BaseException)
        self._said.put_nowait(said)

    def kinds(self) -> list[str]:
        """Of what was written, the frames."""
        return [str(f.WhichOneof("frame")) for message in self.written for f in (message, *message.more)]

    async def read(self) -> bytes:
        said = await self._said.get()
        for _ in range(self.turns):  # gRPC needs some, too, for what has come already.
            await asyncio.sleep(0)
        if self._is_cancelled:
            raise asyncio.CancelledError
        if isinstance(said, BaseException):
            raise said
        return said.SerializeToString()

    async def write(self, request: pb.SessionRequest) -> None:
        self.written.append(request)
        if self.breaks is not None:
            raise self.breaks
        await self.reads.wait()

    async def done_writing(self) -> None:
        pass

    def add_done_callback(self, callback: object) -> None:
        pass

    def cancel(self) -> None:
        if not self._is_over:
            self._is_cancelled = True
            self.say(asyncio.CancelledError())


class LaneOwner:
    """What a lane is to its stream."""

    def __init__(self) -> None:
        self.call = LaneCall()
        self.handed_on: list[str] = []
        self.end: asyncio.Future[StreamEnd] = asyncio.get_running_loop().create_future()
        self.side = SideThread("envtrio-test")
        self.stream = self._open()

    def carry(self, name: str) -> LaneRun:
        return self.stream.carry(Opening(pb.RunRequest(request_id=name), 10, None))

    async def until_over(self) -> StreamEnd:
        async with asyncio.timeout(20):
            return await self.end

    async def opened(self) -> None:
        """The server opens it."""
        self.call.say(OPENED)
        await settled()
        assert self.stream.carries

    async def stalled(self) -> None:
        """The server has opened it, and takes nothing behind the first run."""
        await self.opened()
        self.call.reads.clear()
        self.carry("on its way")
        await settled()
        assert self.call.kinds() == ["open", "open_run"]

    def _open(self) -> LaneStream:
        def hand_on(_run: LaneRun, opening: Opening, _why: str) -> None:
            self.handed_on.append(opening.request.request_id)

        def ended(_stream: LaneStream, end: StreamEnd) -> None:
            self.end.set_result(end)

        call: Any = self.call
        return LaneStream(call, pb.SessionOpen(session_id="s", epoch=1), 5.0, self.side, hand_on, ended)
