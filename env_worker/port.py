"""What a run knows of its caller, and what the caller's handler knows of the run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

End = TypeVar("End")


class PortBrokenError(Exception):
    """The run was ended, or its caller is gone: nothing more can be sent."""


class RunPort(Generic[End]):
    """Carries one run's messages to its handler, one at a time, and then how the run ended. For one event
    loop.

    The run calls `open`, `send`, `send_reply` and `end`. The handler of one run calls `take` and `written` in
    turn until `take` returns None, then reads `ending`. A handler of many sets `on_news`, and looks at
    `opened`, `waiting` and `ended` then. As only one message is on its way, a caller who does not read holds
    up the run, and what changes meanwhile joins the next message.
    """

    def __init__(self) -> None:
        self.ended = False
        self.ending: End | None = None
        """How the run ended: None is OK. Read it when `ended`."""
        self.on_end: Callable[[], object] | None = None
        """Called once, when the run has ended: for a handler that may be stuck in a write."""
        self.opened = False
        """Whether the run was admitted."""
        self._handler: Final = asyncio.Event()
        self.on_news: Callable[[], object] = self._handler.set
        """Called at once when the run was admitted, has a message, or has ended. Must not raise. Who sets it
        cannot use `wait_open` and `take`."""
        self._item: bytes | None = None
        self._commit: Callable[[], bool] | None = None
        self._sender: asyncio.Future[None] | None = None

    # The run's side.

    def open(self) -> None:
        """The run was admitted."""
        self.opened = True
        self.on_news()

    async def send(self, data: bytes) -> None:
        """Returns when the handler has written `data`. PortBrokenError when the run ended before that."""
        if self.ended:
            raise PortBrokenError
        if self._item is not None:
            raise RuntimeError("a message is on its way already; await its send first")
        self._item = data
        self._sender = asyncio.get_running_loop().create_future()
        self.on_news()
        try:
            await self._sender
        finally:
            self._item = self._sender = None

    async def send_reply(self, data: bytes, commit: Callable[[], bool]) -> None:
        """As `send`, for the last message. When it was written, `commit()` decides at once, with no await
        between, whether the run may end OK; if not, whoever decided otherwise has ended it."""
        self._commit = commit
        try:
            await self.send(data)
        finally:
            self._commit = None  # it leads to the run, which leads here

    def end(self, ending: End | None = None) -> None:
        """The run is over, with status OK or with `ending`. A message on its way is broken off. The first
        end counts."""
        if self.ended:
            return
        self.ended, self.ending = True, ending
        if self._sender is not None and not self._sender.done():
            self._sender.set_exception(PortBrokenError())
        self.on_news()
        if self.on_end is not None:
            self.on_end()

    # The handler's side.

    @property
    def waiting(self) -> bytes | None:
        """The message that is to be written; None where there is none, or the run has ended."""
        if self.ended or self._sender is None or self._sender.done():
            return None
        return self._item

    async def wait_open(self) -> bool:
        """Wait until the run was admitted (True), or ended before that (False)."""
        while not (self.opened or self.ended):
            self._handler.clear()
            await self._handler.wait()
        return self.opened and not self.ended

    async def take(self) -> bytes | None:
        """The next message to write; None when the run is over."""
        while not self.ended:
            if (data := self.waiting) is not None:
                return data
            self._handler.clear()
            await self._handler.wait()
        return None

    def written(self) -> None:
        """What `take` or `waiting` gave was written. After the reply this settles the run, so call it without
        an await between, and end the call right after."""
        if self.ended or self._sender is None or self._sender.done():
            return
        if self._commit is not None and self._commit():
            self.ended = True
        if not self._sender.done():
            self._sender.set_result(None)
