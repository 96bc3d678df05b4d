"""A run's ways to its client: a call of its own, or a place in a session's stream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from env_broker.channel_options import MAX_MESSAGE_BYTES
from env_broker.status import Refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from grpc.aio import ServicerContext

    from env_broker.session_outbox import Outlet


class HopBrokenError(Exception):
    """The stream to the client is broken."""


class ContextHop:
    """A gRPC handler's context, as the relay's way to the client."""

    def __init__(self, context: ServicerContext[bytes, bytes]) -> None:
        self._context: Final = context
        self._admitted = False

    async def admitted(self) -> None:
        """As in ClientHop; once, although several workers may be offered it. HopBrokenError as `send`."""
        if not self._admitted:
            self._admitted = True
            await _unbroken(self._context.send_initial_metadata(()))

    async def send(self, message: bytes) -> None:
        """As in ClientHop. HopBrokenError if it cannot be written: what gRPC raises then is not public."""
        await _unbroken(self._context.write(message))

    def give_up(self, *, quietly: bool) -> None:
        """As in ClientHop: what is sent is being written."""

    def time_remaining(self) -> float | None:
        """As in ClientHop."""
        return self._context.time_remaining()


class SessionHop:
    """A run's place in a session's stream, as the relay's way to the client.

    Args:
        timeout: seconds until the run's deadline, which somebody else watches; None: it has none.
    """

    def __init__(self, outlet: Outlet, timeout: float | None) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._outlet: Final = outlet
        self._deadline: Final = None if timeout is None else self._loop.time() + timeout
        self._admitted = self._given_up = self._bounded = self._drops = False
        self._written: asyncio.Future[None] | None = None

    async def admitted(self) -> None:
        """As in ClientHop; once. Returns at once. HopBrokenError if the stream is over."""
        if not self._admitted:
            self._admitted = True
            self._outlet.admit()

    async def send(self, message: bytes) -> None:
        """As in ClientHop: waits for the client's credit too. Cancelled, it is not written any more, unless
        that is under way.

        Raises:
            HopBrokenError: the stream is over.
            Refusal: MESSAGE_TOO_LARGE, where writing it would break the stream for all its runs.
        """
        if len(message) > MAX_MESSAGE_BYTES:
            raise Refusal(
                "MESSAGE_TOO_LARGE",
                f"a message of the run has {len(message)} bytes, the limit is {MAX_MESSAGE_BYTES}; make the "
                "worker send smaller ones",
                value=len(message),
                limit=MAX_MESSAGE_BYTES,
            )
        if self._given_up:
            raise asyncio.CancelledError
        self._drops = self._drops or (self._bounded and not self._outlet.credited)
        if self._drops:
            return
        self._written = self._loop.create_future()
        self._outlet.send(message, self._written)
        try:
            await self._written
        except asyncio.CancelledError:
            self._outlet.close()
            raise
        finally:
            self._written = None

    def give_up(self, *, quietly: bool) -> None:
        """As in ClientHop: nothing waits for the client's credit any more, nor what has yet to be begun for
        its turn. Where a message was dropped, so are those behind it."""
        self._bounded, self._given_up = True, self._given_up or not quietly
        if (written := self._written) is None or not self._outlet.waits:
            return
        self._drops = True
        self._outlet.close()
        if quietly:
            written.set_result(None)
        else:
            written.cancel()

    def time_remaining(self) -> float | None:
        """As in ClientHop."""
        return None if self._deadline is None else max(0.0, self._deadline - self._loop.time())


async def _unbroken(writing: Awaitable[None]) -> None:
    try:
        await writing
    except Exception as error:
        raise HopBrokenError(str(error)) from error
