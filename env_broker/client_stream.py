"""One stream of a client's session, from the side of what it is to be told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from envtrio.v1 import env_service_pb2

from env_broker.route import ConfirmOutcome
from env_broker.status import Refusal, short
from env_broker.worker_session import MAX_FRAME_IDS

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_UNANSWERED: Final = 8_192
"""Confirmations and answers of one stream that are under way; beyond it nothing is read."""

_TO_WIRE: Final[Mapping[ConfirmOutcome, env_service_pb2.ConfirmOutcome.ValueType]] = {
    ConfirmOutcome.CONFIRMED: env_service_pb2.CONFIRM_OUTCOME_CONFIRMED,
    ConfirmOutcome.DISCARDED: env_service_pb2.CONFIRM_OUTCOME_DISCARDED,
    ConfirmOutcome.WORKER_LOST: env_service_pb2.CONFIRM_OUTCOME_WORKER_LOST,
    ConfirmOutcome.UNKNOWN: env_service_pb2.CONFIRM_OUTCOME_UNKNOWN,
}


class ClientStream:
    """One stream of one session: what it waits for, and what it has yet to be told."""

    def __init__(self, session_id: str, epoch: int) -> None:
        self.session_id: Final = session_id
        self.epoch: Final = epoch
        self.pending: Final[set[str]] = set()
        self.goodbye = False
        self._answers: list[env_service_pb2.ConfirmAnswer] = []
        self._news: Final = asyncio.Event()
        self._room: Final = asyncio.Event()
        self._over: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"session={short(self.session_id)} epoch={self.epoch}"

    def answered(self, request_id: str, outcome: ConfirmOutcome) -> None:
        """As in Listener."""
        self.pending.discard(request_id)
        self._answers.append(env_service_pb2.ConfirmAnswer(request_id=request_id, outcome=_TO_WIRE[outcome]))
        self._news.set()

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
        if not self._over.done():
            self._over.set_exception(refusal)
            self._over.exception()  # whether somebody waits for it or not

    async def over(self) -> None:
        """Raises the Refusal with which it was ended."""
        await asyncio.shield(self._over)

    async def room(self) -> None:
        """Return when one more confirmation may be taken."""
        while len(self.pending) + len(self._answers) >= MAX_UNANSWERED:
            self._room.clear()
            await self._room.wait()

    async def next_answers(self) -> list[env_service_pb2.ConfirmAnswer]:
        """What there is to tell, at most MAX_FRAME_IDS; empty when the client is done and nothing is left."""
        while not self._answers and (self.pending or not self.goodbye):
            self._news.clear()
            await self._news.wait()
        answers, self._answers = self._answers[:MAX_FRAME_IDS], self._answers[MAX_FRAME_IDS:]
        self._room.set()
        return answers
