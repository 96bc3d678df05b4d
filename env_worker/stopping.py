"""The order in which a worker stops, each step within its bound of the settings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
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

    def __str__(self) -> str:
        lost = [
            f"{self.ended} runs that had begun" if self.ended else "",
            f"the hooks' work on {len(self.unfinished)} runs" if self.unfinished else "",
            str(self.held) if self.held.episodes else "",
        ]
        said = ", ".join(part for part in lost if part)
        return f"lost: {said}" if said else "nothing was lost"


class Stopping:
    """Drains, stays for what was not fetched or can be taken back, and waits for hooks. For one event loop.

    Args:
        worker: its instance, for the log.
        clock: that of the runner.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        runner: Runner,
        held: HeldArrays,
        *,
        worker: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings: Final = settings
        self._runner: Final = runner
        self._held: Final = held
        self._worker: Final = worker[:8]
        self._clock: Final = clock
        self._hurry: Final = asyncio.Event()
        self._stays_until: float | None = None
        """By the loop's time; None but while it stays."""
        self._stays_for_arrays = False

    @property
    def staying(self) -> str:
        """For people: for what it stays after the drain, and how long at most; empty while it does not."""
        if self._stays_until is None:
            return ""
        left = max(0, math.ceil(self._stays_until - asyncio.get_running_loop().time()))
        kept = "held training arrays" if self._stays_for_arrays else "replies that can still be taken back"
        return f"it stays for {kept}, at most {left} s more"

    def hurry(self) -> None:
        """Skip what is left of the drain and of the stay."""
        self._hurry.set()

    def close(self) -> None:
        """Ask the hook no more what it holds."""
        self._held.close()

    async def run(self, draining: Callable[[], None], *, cause: str = "") -> Losses:
        """Go through all steps; `draining` is called when no new run is taken any more. What was lost, which
        is in the log then, as is the `cause`."""
        runner, settings = self._runner, self._settings
        runner.drain()
        draining()
        self._announce(cause)
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

    def _announce(self, cause: str) -> None:
        why = f" ({cause})" if cause else ""
        live = sum(not (entry.replied or entry.settled) for entry in self._runner.table.entries())
        if not live:
            what = "no run is under way"
        elif self._settings.drain_seconds and not self._hurry.is_set():
            seconds = self._settings.drain_seconds
            what = f"{live} runs have {seconds:g} s to finish; a second signal ends them at once"
        else:
            what = f"{live} runs are ended at once"
        logger.info("worker=%s stops%s: %s", self._worker, why, what)

    async def _stay(self) -> None:
        """Until no reply can be taken back and no array is held."""
        windows, held = self._runner.table.open_windows, await self._held.read()
        self._stays_for_arrays = bool(held.episodes)
        if not (windows or held.episodes):
            return
        if self._settings.linger_seconds and not self._hurry.is_set():
            logger.warning(
                "worker=%s stays %s for %d replies that can still be taken back and %s; a second signal ends "
                "it at once",
                self._worker, self._how_long(held), windows, held,
            )  # fmt: skip
        self._stays_until = asyncio.get_running_loop().time() + self._settings.linger_seconds
        try:
            await self._within(self._settings.linger_seconds, self._emptied())
        finally:
            self._stays_until = None

    def _how_long(self, held: Held) -> str:
        most, last = self._settings.linger_seconds, self._runner.table.last_expiry
        # Windows have an end of their own, and those of a pool close at the first heartbeat after it.
        windows = 0.0 if last is None else max(1.0, math.ceil(last - self._clock()))
        if held.episodes or windows >= most:
            return f"up to {most:g} s"
        return f"about {windows:g} s, at most {most:g} s,"

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
                "worker=%s reason=ARRAYS_LOST it ends with %s, which nobody took out of the hook %s",
                self._worker, losses.held,
                "before a second signal came" if self._hurry.is_set()
                else f"in --linger-seconds {self._settings.linger_seconds:g}",
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
