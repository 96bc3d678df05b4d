"""Collects what confirmations of a client's session came to."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from env_client.session import Session
    from env_client.session_driver import Settlement, Ticket

_PATIENCE_SECONDS: Final = 20.0


class Answers:
    """What confirmations came to, in order."""

    def __init__(self) -> None:
        self._came: queue.SimpleQueue[tuple[str, Settlement]] = queue.SimpleQueue()

    def ask(self, session: Session, request_id: str) -> Ticket:
        """Confirm a run."""
        return session.confirm(request_id, lambda settlement: self._came.put((request_id, settlement)))

    def next(self) -> tuple[str, Settlement]:
        """The oldest that was not taken, once there is one."""
        return self._came.get(timeout=_PATIENCE_SECONDS)

    def none_came(self) -> bool:
        """Whether all that came were taken."""
        return self._came.empty()
