"""The synthetic environment, which counts its calls and is ugly where a run's id says so."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from env_worker.envs.synthetic import SyntheticEnvironment
from tests.helpers.history import EnvironmentBegan, EnvironmentEnded
from tests.helpers.history_pipe import HistoryWriter

if TYPE_CHECKING:
    from env_worker.envs.base import Context


class UglyError(RuntimeError):
    """What an ugly run raises."""


class ChaosEnvironment(SyntheticEnvironment):
    """By the last digit of the request_id: 0 raises before its first trace, 1 behind it, 2 blocks its loop, 3
    takes its time to be cancelled, 4 starts a process that outlives it, 5 to 8 wait for a while."""

    def __init__(self) -> None:
        self._writer = HistoryWriter()

    async def run(self, context: Context) -> None:
        run = context.request_id
        self._writer.note(EnvironmentBegan, run, pid=os.getpid())
        how = "raised"
        try:
            await self._run(context, int(run[-1], 16))
            how = "returned"
        except asyncio.CancelledError:
            how = "cancelled"
            raise
        finally:
            self._writer.note(EnvironmentEnded, run, how=how)

    async def _run(self, context: Context, digit: int) -> None:
        if digit == 0:
            raise UglyError("before the first trace")
        await super().run(context)
        if digit == 1:
            raise UglyError("behind the first trace")
        if digit == 2:
            time.sleep(0.1)  # noqa: ASYNC251  # that is what it is for
        elif digit == 3:
            try:
                await asyncio.sleep(1.0)
            except asyncio.CancelledError:
                await asyncio.sleep(0.3)
                raise
        elif digit == 4:
            await asyncio.create_subprocess_exec("sleep", "0.5", start_new_session=True)
        elif digit <= 8:
            await asyncio.sleep(0.2 * (digit - 4))
