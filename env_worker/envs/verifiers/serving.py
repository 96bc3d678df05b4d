"""Holds `serving()` of a verifiers environment open, from the first run to the end of the worker."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

logger = logging.getLogger(__name__)

LEAVE_SECONDS: Final = 15.0
"""How long leaving may take: a tool server is told to end, after 5 s killed, and waited for 5 s more."""


class Serving:
    """Enters `serving()` when the first run comes, in a task of its own: what a task has entered it must
    leave, and a run may be cancelled meanwhile. For one event loop, that of the first run.

    Args:
        serving: makes the context.
    """

    def __init__(self, serving: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._serving: Final = serving
        self._loop: asyncio.AbstractEventLoop | None = None
        self._holder: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._leave: Final = asyncio.Event()
        self._idle: Final = asyncio.Event()
        self._runs = 0

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """For as long as a run needs it. Raises what entering raised; the next run tries again. RuntimeError
        once it is being left."""
        if self._leave.is_set():
            raise RuntimeError("the worker ends, and its environment with it; run this elsewhere")
        self._runs += 1
        self._idle.clear()
        try:
            await asyncio.shield(self._open())
            yield
        finally:
            self._runs -= 1
            if not self._runs:
                self._idle.set()

    def close(self, seconds: float) -> bool:
        """Leave it, when the runs that were cancelled have ended, or after `seconds`. Whether it was left.

        For another thread than that of the loop, which still runs; not for long after `seconds`, also where
        something blocks the loop. Again: changes nothing.
        """
        if self._loop is None:
            return True
        if not self._loop.is_running():
            return False  # what ran there has ended with it, as it may
        closing = asyncio.run_coroutine_threadsafe(self._close(seconds), self._loop)
        try:
            return closing.result(seconds + LEAVE_SECONDS + 1)
        except TimeoutError:
            closing.cancel()
            return False

    def _open(self) -> asyncio.Future[None]:
        if self._opened is None or self._holder is None or self._holder.done():
            loop = self._loop = asyncio.get_running_loop()
            opened = self._opened = loop.create_future()
            opened.add_done_callback(lambda future: future.cancelled() or future.exception())
            # Not in the run's context: it belongs to none.
            self._holder = loop.create_task(
                self._hold(opened), name="verifiers-serving", context=contextvars.Context()
            )
        return self._opened

    async def _hold(self, opened: asyncio.Future[None]) -> None:
        try:
            async with self._serving():
                opened.set_result(None)
                await self._leave.wait()
        except asyncio.CancelledError:
            opened.cancel()
            raise
        except Exception as error:
            if opened.done():
                logger.exception("leaving a verifiers environment failed")
            else:
                opened.set_exception(error)

    async def _close(self, seconds: float) -> bool:
        if self._runs:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), seconds)
        self._leave.set()
        holder = self._holder
        if holder is None or holder.done():
            return not self._runs
        _, late = await asyncio.wait((holder,), timeout=LEAVE_SECONDS)
        if late:
            holder.cancel()
        return not (late or self._runs)
