"""Tasks with an owner and a bound."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Coroutine

log = logging.getLogger(__name__)


class Errands:
    """Work that outlives the call which caused it, such as telling a worker that its caller has gone.

    Args:
        limit: most errands at once. Beyond it new ones are refused.
    """

    def __init__(self, limit: int = 16_384) -> None:
        self._limit: Final = limit
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None], name: str, *, always: bool = False) -> bool:
        """Own `work` until it is done. False: there are too many, `work` was not begun.

        Args:
            always: begin it also then, because nothing else would do it; the caller bounds it.
        """
        if len(self._tasks) >= self._limit and not always:
            work.close()
            log.error("errand=%s refused: %d errands are under way, the limit", name, len(self._tasks))
            return False
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return True

    async def close(self, seconds: float) -> None:
        """Let what is under way finish within `seconds`, then cancel the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in (rest := tuple(self._tasks)):
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        _log_failure(task)


def background(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """A task for as long as its owner lives, who cancels it. What ends it early is in the log at once."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_log_failure)
    return task


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("task=%s failed, a fault of the broker itself", task.get_name(), exc_info=error)


async def first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Return, or raise, with the first that ends; the others are cancelled and awaited."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
