"""One stream of a client's session, from the side of what it is to be told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from envtrio.v1 import env_service_pb2

from env_broker.route import ConfirmOutcome
from env_broker.session_outbox import Outbox
from env_broker.status import Refusal, short

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_UNANSWERED: Final = 8_192
"""Confirmations and answers of one stream that are under way; beyond it nothing is read."""
MAX_WAITING: Final = 8_192
"""Frames that wait to be written; beyond it nothing is read."""

_TO_WIRE: Final[Mapping[ConfirmOutcome, env_service_pb2.ConfirmOutcome.ValueType]] = {
    ConfirmOutcome.CONFIRMED: env_service_pb2.CONFIRM_OUTCOME_CONFIRMED,
    ConfirmOutcome.DISCARDED: env_service_pb2.CONFIRM_OUTCOME_DISCARDED,
    ConfirmOutcome.WORKER_LOST: env_service_pb2.CONFIRM_OUTCOME_WORKER_LOST,
    ConfirmOutcome.UNKNOWN: env_service_pb2.CONFIRM_OUTCOME_UNKNOWN,
}


class ClientStream:
    """One stream of one session: what it waits for, and what it has yet to be told.

    Attributes:
        pending: runs whose confirmation has no answer yet.
        outbox: what is due.
        over: raises, once it is done, the Refusal with which the stream was ended.
    """

    def __init__(self, session_id: str, epoch: int) -> None:
        self.session_id: Final = session_id
        self.epoch: Final = epoch
        self.pending: Final[set[str]] = set()
        self.goodbye = False
        self._last_word: Refusal | None = None
        self._news: Final = asyncio.Event()
        self._room: Final = asyncio.Event()
        self.outbox: Final = Outbox(self._news.set)
        self.over: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"session={short(self.session_id)} epoch={self.epoch}"

    def answered(self, request_id: str, outcome: ConfirmOutcome) -> None:
        """As in Listener."""
        self.pending.discard(request_id)
        self.outbox.answer(env_service_pb2.ConfirmAnswer(request_id=request_id, outcome=_TO_WIRE[outcome]))

    def unanswered(self, request_id: str) -> None:
        """As in Listener."""
        self.pending.discard(request_id)
        self._room.set()
        self._news.set()

    def say_goodbye(self) -> None:
        """The client is done: what is pending is answered yet."""
        self.goodbye = True
        self._news.set()

    def end(self, refusal: Refusal) -> None:
        """End it with a status."""
        if not self.over.done():
            self.over.set_exception(refusal)
            self.over.exception()  # whether somebody waits for it or not

    def finish(self, refusal: Refusal) -> None:
        """End it with a status once no run of it is left, and what is due was told."""
        self._last_word = refusal
        self._news.set()

    @property
    def full(self) -> bool:
        """Whether no more may be read now."""
        return len(self.pending) + self.outbox.answers >= MAX_UNANSWERED or self.outbox.waiting > MAX_WAITING

    async def room(self) -> None:
        """Return when it is not full."""
        while self.full:
            self._room.clear()
            await self._room.wait()

    async def next_message(self) -> bytes | None:
        """What there is to tell; None when the client is done and nothing is left. Call `told` when it was
        written. Refusal as `finish` said."""
        while (message := self.outbox.message()) is None:
            if self.goodbye and not self.pending:
                return None
            if self._last_word is not None and not self.outbox.runs:
                raise self._last_word
            self._news.clear()
            await self._news.wait()
        self._room.set()
        return message

    def told(self) -> None:
        """The message was written."""
        self.outbox.written()
