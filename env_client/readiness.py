"""Holds back runs that were not sent while their server takes none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from env_client.errors import EnvError, UnavailableError, WorkerLostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_client.client import EnvClient

_SAID_AFTER_SECONDS: Final = 1.0
"""A shorter wait is not worth a line."""


class Readiness:
    """Whether runs may be sent: asked before the first one, and whenever one found the server unavailable.

    Args:
        client: of that server.
        wait_seconds: how long to wait for it, each time. Once that was in vain, nothing is sent any more.
        say: shows a line to whoever watches.
    """

    def __init__(self, client: EnvClient, wait_seconds: float, say: Callable[[str], None]) -> None:
        self._client: Final = client
        self._wait_seconds: Final = wait_seconds
        self._say: Final = say
        self._asking: Final = asyncio.Lock()
        self._is_known = False
        self._doubt = ""
        self._gave_up: EnvError | None = None

    async def wait(self) -> None:
        """Return once a run may be sent.

        Raises:
            EnvError: none may, as the server did not come (back) in time, or has no health to ask for.
        """
        if self._is_known:
            return
        async with self._asking:
            if self._gave_up is None and not self._is_known:
                await self._ask()
            if self._gave_up is not None:
                gone = self._gave_up
                reason = gone.reason or "NOT_ADMITTED"  # it had no effect
                raise type(gone)(f"not sent: {gone}", code=gone.code, reason=reason) from gone

    def heard(self, error: Exception) -> None:
        """A run ended so. One that found no server, or one that takes none, makes the others wait; the loss
        of one worker says nothing of the rest."""
        if isinstance(error, UnavailableError) and not isinstance(error, WorkerLostError):
            self._is_known, self._doubt = False, f" ({error})"

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        target, seconds, said = self._client.target, self._wait_seconds, []

        def tell() -> None:
            said.append(
                f"{target} takes no runs{self._doubt}; those not sent wait for it, up to {seconds:g} s"
            )
            self._say(said[0])

        timer = loop.call_later(_SAID_AFTER_SECONDS, tell)
        try:
            await self._client.wait_until_ready(seconds)
        except EnvError as error:
            self._gave_up = error
            return
        finally:
            timer.cancel()
        self._is_known = True
        if said:
            self._say(f"{target} takes runs")
