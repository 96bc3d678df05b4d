"""The body of a fetch, piece by piece."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from env_worker.arrays.fetch import PIECE_BYTES

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from env_worker.arrays.fetch import Fetch


class Pieces:
    """Pieces of PIECE_BYTES, the last one shorter: from memory at once, by `threads` from a disk, and where
    one is put together from very many parts.

    One at a time. The fetch may be closed at any moment, also while a thread reads.
    """

    def __init__(self, fetch: Fetch, threads: ThreadPoolExecutor) -> None:
        self._pieces: Final = fetch.pieces(PIECE_BYTES)
        # 0.1 ms from memory: less than a thread would cost.
        self._threads: Final = threads if fetch.spilled or fetch.scattered else None

    async def next(self) -> bytes | None:
        """The next bytes of the body, None at its end. OSError if a disk fails."""
        if self._threads is None:
            return next(self._pieces, None)
        return await asyncio.wrap_future(self._threads.submit(next, self._pieces, None))
