"""The environments' processes of a worker: those that play, and one for each environment that waits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from env_worker.isolate.process import EXIT_SECONDS, ChildProcess

logger = logging.getLogger(__name__)

_CLOSE_SECONDS: Final = 5.0
_MAX_ENDING: Final = 32
"""So many processes may take their time to end after their runs."""


class Children:
    """Starts processes, keeps one spare for each environment that was asked for, and ends them all.

    A run takes the spare, which has loaded its environment already, and the next spare is started at once: so
    there is a process for each run and one more for each environment. All on one loop, but `close`.
    """

    def __init__(self) -> None:
        self._spares: Final[dict[str, ChildProcess]] = {}
        self._playing: Final[set[ChildProcess]] = set()
        self._endings: Final[set[asyncio.Task[None]]] = set()
        self._changed: Final = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def take(self, spec: str, *, fresh: bool = False) -> ChildProcess:
        """A process for one run of `spec`, to be given back: the spare, if there is one, unless it has to be
        `fresh`. OSError or RuntimeError if none can be started."""
        if self._closed:
            raise RuntimeError("the worker ends, so no process is started for another run")
        self._loop = asyncio.get_running_loop()
        child = None if fresh else self._spares.pop(spec, None)
        if child is not None and child.exited.done():
            self._end(child, 0)
            child = None
        if child is None:
            child = ChildProcess(spec)
        self._playing.add(child)
        if spec not in self._spares:
            try:
                self._spares[spec] = ChildProcess(spec)
            except (OSError, RuntimeError) as error:
                logger.warning("no process can be kept ready for environment %s: %s", spec, error)
        return child

    async def give_back(self, child: ChildProcess, seconds: float = EXIT_SECONDS) -> None:
        """Its run has ended: wait so long for its end, then end it."""
        await child.close(seconds)
        self._playing.discard(child)
        self._changed.set()

    def leave(self, child: ChildProcess) -> None:
        """The same where it has said its last word: nobody has to wait for it. Beyond _MAX_ENDING of those it
        is ended at once."""
        self._playing.discard(child)
        self._changed.set()
        self._end(child, EXIT_SECONDS if len(self._endings) < _MAX_ENDING else 0)

    async def close(self, seconds: float) -> None:
        """End the spares, wait so long for the runs' processes, end those too. From any loop, while that of
        the processes runs."""
        if self._loop is not None:
            closing = asyncio.run_coroutine_threadsafe(self._close(seconds), self._loop)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(closing), seconds + _CLOSE_SECONDS)

    async def _close(self, seconds: float) -> None:
        self._closed = True
        for spare in self._spares.values():
            spare.kill("the worker ends")
            self._end(spare, EXIT_SECONDS)
        self._spares.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._until_none_plays()
        except TimeoutError:
            for child in self._playing:
                logger.warning("run=%s is cut off: the worker ends", child.log.name)
                child.kill("the worker ends")
            await self._until_none_plays()
        await asyncio.gather(*self._endings)

    async def _until_none_plays(self) -> None:
        while self._playing:
            self._changed.clear()
            await self._changed.wait()

    def _end(self, child: ChildProcess, seconds: float) -> None:
        ending = asyncio.get_running_loop().create_task(child.close(seconds))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
