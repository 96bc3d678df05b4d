"""What the meter of the event loop's lag costs the client that it measures."""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple

from benchmarks.versus.gauges import Lag

_SECONDS: Final = 0.5


class Ticker(NamedTuple):
    """CPU of the meter: µs each time that it wakes, and ms a second."""

    tick_us: float
    second_ms: float


async def ticker() -> Ticker:
    """Measure it: an idle event loop of this process, half a second without the meter and as long with it."""
    without, _ = await _idle()
    async with Lag() as lag:
        cpu, seconds = await _idle()
    cost = max(cpu - without, 0.0)
    return Ticker(cost * 1e6 / len(lag.seconds), cost * 1e3 / seconds)


async def _idle() -> tuple[float, float]:
    """CPU seconds of this process, and how long it was."""
    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.sleep(_SECONDS)
    return time.process_time() - cpu, time.perf_counter() - began
