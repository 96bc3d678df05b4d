"""Plays a workload: both sides and what there is with no pool, round by round, in turns."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.versus.figures import Results
from benchmarks.versus.load import Order
from benchmarks.versus.side import Side, SideFailed
from benchmarks.versus.workloads import CEILING, FETCHED, OURS, PEER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from benchmarks.versus.workloads import Workload

ROUND_SECONDS: Final = 120.0
_WARM_EPISODES: Final = 16
_REST_SECONDS: Final = 0.2
_NUMBERS: Final = 100_000
"""Run numbers that a round may have, so that no two runs have the same."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How it is played: so many rounds of each side; by driver its interpreter; a folder for their logs."""

    rounds: int
    pythons: Mapping[str, Path]
    logs: Path
    say: Callable[[str], None]


class Match:
    """A workload on both sides. `versions` are those of the drivers that started, by driver."""

    def __init__(self, workload: Workload, setting: Setting) -> None:
        self._workload = workload
        self._setting = setting
        self._drivers: dict[str, tuple[Side, AsyncExitStack]] = {}
        self._broken: dict[str, str] = {}
        self._order_number = 0
        self.versions: dict[str, dict[str, str]] = {}
        self.results = Results(workload)

    async def play(self) -> Results:
        """All rounds of it. A side that fails has rows that say so, and is started anew for its next one."""
        try:
            for driver in (OURS, PEER, *((CEILING,) if self._workload.ceilings else ())):
                await self._start(driver)  # all before the first round: starting is nobody's load
            for number in range(self._setting.rounds):
                sides = (*self._workload.sides, *self._workload.ceilings)
                for side in sides if number % 2 == 0 else reversed(sides):
                    self.results.add(side, await self._round(number, side))
        finally:
            await asyncio.gather(*(self._stop(driver) for driver in list(self._drivers)))
        return self.results

    async def _round(self, number: int, side: str) -> dict[str, float | None] | str:
        driver = self._driver(side)
        where = f"{self._workload.name}, round {number + 1}, {side}"
        if driver not in self._drivers:
            await self._start(driver)
        if driver in self._broken:
            return self._broken[driver]
        order = self._order(side, self._workload.episodes(side), seed=number)
        try:
            figures = await self._drivers[driver][0].play(order, ROUND_SECONDS)
        except SideFailed as error:
            await self._stop(driver)
            self._setting.say(f"{where}: FAILED: {error}")
            return str(error)
        self._setting.say(f"{where}: {figures['episodes_per_s']:.1f} episodes/s")
        await asyncio.sleep(_REST_SECONDS)
        return figures

    def _order(self, side: str, episodes: int, seed: int) -> Order:
        self._order_number += 1
        workload = self._workload
        return Order(
            episodes=episodes,
            concurrency=workload.concurrency,
            first_number=self._order_number * _NUMBERS,
            turns=workload.shape.turns,
            cancel_within=workload.shape.least_seconds if workload.cancels else 0.0,
            seed=seed,
            fetch=side == FETCHED,
            part=side if self._driver(side) == CEILING else "",
        )

    def _driver(self, side: str) -> str:
        """Which one plays that side's rounds."""
        if side in self._workload.ceilings:
            return CEILING
        return PEER if side == PEER else OURS

    async def _start(self, driver: str) -> None:
        """Have it there and warm. One that cannot be had is not tried again: `_broken` says why."""
        if driver in self._broken:
            return
        log = self._setting.logs / f"{self._workload.name}-{driver}.log"
        stack = AsyncExitStack()
        try:
            side = await stack.enter_async_context(
                Side(driver, self._workload.name, self._setting.pythons[driver], log)
            )
            self._drivers[driver] = side, stack
            self.versions[driver] = side.versions
            warm = FETCHED if driver == OURS and self._workload.keeps else driver
            for one in self._workload.ceilings if driver == CEILING else (warm,):
                await side.play(self._order(one, _WARM_EPISODES, seed=0), ROUND_SECONDS)
        except SideFailed as error:
            self._broken[driver] = f"it did not start: {error}"
            self._setting.say(f"{self._workload.name}, {driver}: FAILED: {self._broken[driver]}")
            await self._stop(driver)

    async def _stop(self, driver: str) -> None:
        if driver in self._drivers:
            _, stack = self._drivers.pop(driver)
            await stack.aclose()
