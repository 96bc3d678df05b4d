"""Runs of an EnvClient, recorded for the oracle."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from env_client import EnvError
from tests.helpers.history import Asked, Ended
from tests.helpers.stub_client import new_id

if TYPE_CHECKING:
    from envtrio.v1.episode_pb2 import Episode

    from env_client import EnvClient
    from tests.helpers.history import History


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
        return episode
