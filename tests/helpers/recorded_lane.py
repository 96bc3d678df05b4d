"""The lane of an EnvClient, whose confirmations are recorded, or left to its session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from env_client.lane import Lane
from tests.helpers.history import ConfirmAnswered, ConfirmSent

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Container

    import grpc

    from env_client import EnvClient
    from env_client.confirmations import Verdict
    from tests.helpers.history import History


class RecordedLane(Lane):
    """Notes each confirmation that goes in the lane, and what it was answered.

    Args:
        held: runs whose confirmation is for the session.
    """

    def __init__(self, channel: grpc.aio.Channel, history: History, held: Container[str]) -> None:
        super().__init__(channel)
        self._history = history
        self._held = held

    def confirm(self, request_id: str) -> asyncio.Future[Verdict | None] | None:
        if request_id in self._held or (answer := super().confirm(request_id)) is None:
            return None

        def noted(answer: asyncio.Future[Verdict | None]) -> None:
            verdict = None if answer.cancelled() else answer.result()
            if verdict is not None:
                self._history.note(ConfirmAnswered, request_id, outcome=verdict.value)

        self._history.note(ConfirmSent, request_id)  # it leaves after this step of the loop
        answer.add_done_callback(noted)
        return answer


def record_lane(client: EnvClient, history: History, held: Container[str] = ()) -> None:
    """Note what the client confirms in its lane. Before its first run, in its loop."""
    assert client._lane is None, "it has one already"
    client._lane = RecordedLane(client._open_channel(), history, held)
