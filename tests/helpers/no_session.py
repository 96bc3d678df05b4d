"""In place of a client's session, for tests that play the server of its runs by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from env_client.confirmations import Verdict
from env_client.home import Home

if TYPE_CHECKING:
    from collections.abc import Callable


class NoSession:
    """In place of a session, with a server that has none."""

    def __init__(self) -> None:
        self.home = Home()

    def open(self) -> str:
        """There is none."""
        return ""

    def confirm(self, _request_id: str, settle: Callable[[Verdict], object]) -> None:
        settle(Verdict.NOT_OFFERED)

    def close(self, _timeout: float) -> None:
        """There is none."""
