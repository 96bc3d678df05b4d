"""A thread beside an event loop, for work that would hold it up."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class SideThread:
    """Does short pieces of work, one after another, in a thread that is started with the first.

    Not in the loop's default executor: that is its caller's, who may have filled it with work that takes as
    long as it likes. The thread ends with `close`, when this is collected, or with the interpreter.

    Args:
        name: the thread's name begins with it.
    """

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)
        self._is_closed = False

    async def do(self, work: Callable[[*_Ts], _T], *arguments: *_Ts) -> _T:
        """Return what `work(*arguments)` returns, or raise what it raises.

        If the caller is cancelled, work that was not begun is not done; what was begun is finished unheard.

        Raises:
            asyncio.CancelledError: it was closed.
        """
        if self._is_closed:
            raise asyncio.CancelledError
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)

    @staticmethod
    async def once(name: str, work: Callable[[*_Ts], _T], *arguments: *_Ts) -> _T:
        """As `do`, in a thread for this alone, which nothing else waits for."""
        side = SideThread(name)
        try:
            return await side.do(work, *arguments)
        finally:
            side.close()

    def close(self) -> None:
        """Drop the work that was not begun, and end the thread without waiting for it. Idempotent."""
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
