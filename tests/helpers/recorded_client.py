"""Runs of an EnvClient, recorded for the oracle."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

from env_client import EnvError
from env_client.channels import open_sync_channel
from env_client.confirmations import Verdict
from env_client.session import Session
from tests.helpers.history import Asked, ConfirmAnswered, ConfirmSent, Ended, Returned
from tests.helpers.stub_client import new_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from envtrio.v1.episode_pb2 import Episode

    from env_client import EnvClient
    from env_client.session_driver import Settlement, Ticket
    from tests.helpers.history import History

_ANSWERS: dict[object, str] = {
    verdict: verdict.value for verdict in (Verdict.CONFIRMED, Verdict.DISCARDED, Verdict.WORKER_LOST)
}


class RecordedSession(Session):
    """A session that notes each confirmation, and what it was answered."""

    def __init__(self, address: str, history: History) -> None:
        super().__init__(functools.partial(open_sync_channel, address, None))
        self._history = history

    def confirm(self, request_id: str, settle: Callable[[Settlement], object]) -> Ticket:
        def noted(settlement: Settlement) -> object:
            if settlement in _ANSWERS:
                self._history.note(ConfirmAnswered, request_id, outcome=_ANSWERS[settlement])
            return settle(settlement)

        self._history.note(ConfirmSent, request_id)
        return super().confirm(request_id, noted)


class RecordedClient:
    """Runs through `client`; notes in `history` what was asked and how it ended. `runs` are their ids."""

    def __init__(self, client: EnvClient, history: History) -> None:
        self.client = client
        self.runs: list[str] = []
        self._history = history

    async def run(self, task: Any, **arguments: Any) -> Episode | EnvError:
        """The episode, or what `EnvClient.run` raised in its place."""
        run = arguments.setdefault("request_id", new_id())
        self.runs.append(run)
        self._history.note(Asked, run)
        try:
            episode = await self.client.run(task, **arguments)
        except EnvError as error:
            self._history.note(Ended, run, code=error.code, reason=error.reason)
            return error
        except asyncio.CancelledError:
            self._history.note(Ended, run, code="CANCELLED", reason="")
            raise
        self._history.note(Ended, run, code="OK")
        self._history.note(Returned, run)
        return episode
