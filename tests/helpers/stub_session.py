"""A session on the plain stub: confirms runs one by one, and records what it was answered."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc
from envtrio.v1.env_service_pb2 import (
    Confirm,
    ConfirmOutcome,
    SessionGoodbye,
    SessionOpen,
    SessionOpened,
    SessionRequest,
)

from tests.helpers.history import ConfirmAnswered, ConfirmSent
from tests.helpers.stub_client import GENERATION, new_id

if TYPE_CHECKING:
    from tests.helpers.history import History


class StubSession:
    """One stream of a session. `id` belongs into the requests of its runs."""

    def __init__(self, stub: Any, history: History, *, session_id: str = "", epoch: int = 1) -> None:
        self.id = session_id or new_id()
        self.epoch = epoch
        self._history = history
        self._call = stub.Session()
        self._writing = asyncio.Lock()
        self._waiting: dict[str, list[asyncio.Future[str]]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def open(self) -> SessionOpened:
        """Take the session up."""
        await self._write(
            SessionRequest(
                open=SessionOpen(session_id=self.id, epoch=self.epoch, protocol_generation=GENERATION)
            )
        )
        first = await self._call.read()
        if first is grpc.aio.EOF:
            raise AssertionError(f"no session: {await self._call.code()} {await self._call.details()}")
        assert first.WhichOneof("frame") == "opened", first
        self._reader = asyncio.create_task(self._read())
        opened: SessionOpened = first.opened
        return opened

    async def confirm(self, run: str) -> str:
        """Confirm one run; the outcome without its prefix. EOFError if the stream ended without an answer."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run, []).append(answer)
        self._history.note(ConfirmSent, run)
        await self._write(SessionRequest(confirm=Confirm(request_ids=[run])))
        return await answer

    async def goodbye(self) -> str:
        """End the session in good order; the name of its status."""
        await self._write(SessionRequest(goodbye=SessionGoodbye()))
        await self._call.done_writing()
        return await self.ended()

    async def ended(self) -> str:
        """Wait for the end of the stream; the name of its status."""
        if self._reader is not None:
            await self._reader
        code: grpc.StatusCode = await self._call.code()
        return code.name

    def break_off(self) -> None:
        """End the stream without a goodbye."""
        self._call.cancel()

    async def _write(self, frame: SessionRequest) -> None:
        async with self._writing:
            await self._call.write(frame)

    async def _read(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            while (frame := await self._call.read()) is not grpc.aio.EOF:
                assert not frame.more, "who opens no runs may be older than that"
                for answer in frame.confirm_answers.answers:
                    outcome = ConfirmOutcome.Name(answer.outcome).removeprefix("CONFIRM_OUTCOME_")
                    self._history.note(ConfirmAnswered, answer.request_id, outcome=outcome)
                    for waiting in self._waiting.pop(answer.request_id, ()):
                        waiting.set_result(outcome)
        for run, futures in self._waiting.items():
            for waiting in futures:
                waiting.set_exception(EOFError(f"run {run[:8]}: the session ended without an answer"))
