"""The order in which a worker stops, each step within its bound of the settings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from env_worker.exit_codes import exit_code

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from env_worker.config import WorkerSettings
    from env_worker.held_arrays import Held, HeldArrays
    from env_worker.runner import Runner

logger = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.1
"""How often the hook is asked what it holds: it cannot say by itself when the last array was released."""


@dataclass(frozen=True, slots=True)
class Losses:
    """What a stop could not wait for."""

    unfinished: list[str]
    """The request_ids, cut to 8 digits, whose hooks were still at work."""
    held: Held
    """Arrays that end with the process."""
    ended: int
    """Runs that had begun and were ended."""

    def exit_code(self, cause: int) -> int:
        """The exit code of a worker that stopped for `cause`."""
        return exit_code(cause, unfinished=len(self.unfinished), held=self.held.episodes, ended=self.ended)


class Stopping:
    """Drains, stays for what was not fetched or can be taken back, and waits for hooks. For one event loop.

    Args:
        worker: its instance, for the log.
    """

    def __init__(self, settings: WorkerSettings, runner: Runner, held: HeldArrays, *, worker: str) -> None:
        self._settings: Final = settings
        self._runner: Final = runner
        self._held: Final = held
        self._worker: Final = worker[:8]
        self._hurry: Final = asyncio.Event()

    def hurry(self) -> None:
        """Skip what is left of the drain and of the stay."""
        self._hurry.set()

    def close(self) -> None:
        """Ask the hook no more what it holds."""
        self._held.close()

    async def run(self, draining: Callable[[], None]) -> Losses:
        """Go through all steps; `draining` is called when no new run is taken any more. What was lost, which
        is in the log then."""
        runner, settings = self._runner, self._settings
        runner.drain()
        draining()
        await self._within(settings.drain_seconds, runner.wait_replied())
        if ended := runner.stop_runs():
            logger.warning(
                "worker=%s reason=WORKER_LOST %d runs that had begun are ended after the drain",
                self._worker, ended,
            )  # fmt: skip
        await self._stay()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.kill_seconds):
                await runner.wait_hooks()
        losses = Losses([entry.request_id[:8] for entry in runner.at_work()], await self._held.read(), ended)
        self._tell(losses)
        return losses

    async def _stay(self) -> None:
        """Until no reply can be taken back and no array is held."""
        windows, held = self._runner.table.open_windows, await self._held.read()
        if not (windows or held.episodes):
            return
        if self._settings.linger_seconds and not self._hurry.is_set():
            logger.warning(
                "worker=%s stays up to %g s for %d replies that can still be taken back and %s; a second "
                "signal ends it at once",
                self._worker, self._settings.linger_seconds, windows, held,
            )  # fmt: skip
        await self._within(self._settings.linger_seconds, self._emptied())

    async def _emptied(self) -> None:
        await self._runner.wait_windows()
        while (await self._held.read()).episodes:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(_POLL_SECONDS)

    def _tell(self, losses: Losses) -> None:
        if losses.unfinished:
            logger.error(
                "worker=%s reason=UNFINISHED after %g s hooks still have the runs %s; what they keep is "
                "neither delivered nor discarded",
                self._worker, self._settings.kill_seconds, ",".join(losses.unfinished),
            )  # fmt: skip
        if losses.held.episodes:
            logger.error(
                "worker=%s reason=ARRAYS_LOST it ends with %s, which nobody fetched and released in "
                "--linger-seconds %g",
                self._worker, losses.held, self._settings.linger_seconds,
            )  # fmt: skip
        if windows := self._runner.table.open_windows:
            logger.warning(
                "worker=%s ends with %d replies that could still have been taken back: they count as "
                "delivered",
                self._worker, windows,
            )  # fmt: skip

    async def _within(self, seconds: float, reached: Coroutine[None, None, None]) -> None:
        waits = [asyncio.ensure_future(reached), asyncio.ensure_future(self._hurry.wait())]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
