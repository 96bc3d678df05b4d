"""Trying a request to an engine again, where that can help."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from env_worker.model.errors import EngineError

logger = logging.getLogger(__name__)

T = TypeVar("T")

LONGEST_RETRY_AFTER_SECONDS: Final = 60.0
"""An engine that asks for more is asked again after this: it may mean minutes, or be mistaken."""

_SECONDS: Final = re.compile(r"[0-9]+")
"""As HTTP has them: neither a sign nor a fraction, nor what else Python reads as a number."""


class FailedTry(NamedTuple):
    """A request that brought nothing of use. `started_at` is unix seconds, `attempt` counts from 1."""

    attempt: int
    started_at: float
    duration_seconds: float
    error: EngineError


class TryFailedError(Exception):
    """Raised by one try: `error` is what the environment hears if no other follows; `retry_after_seconds` is
    how long the engine asks to be left alone, None where it does not say."""

    def __init__(self, error: EngineError, retry_after_seconds: float | None = None) -> None:
        super().__init__(str(error))
        self.error: Final = error
        self.retry_after_seconds: Final = retry_after_seconds


def _draw() -> float:
    """Of each process's own: `random.random` itself would be pickled with its state, and two processes would
    draw the same."""
    return random.random()


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between the tries of a request, drawn from zero to a bound: that of the first is
    `first_seconds`, each next one twice as long, up to `longest_seconds`.

    Drawn from zero, because hundreds of runs hear of an engine's failure in the same moment. `sleep` and
    `draw` (uniform in 0 to 1) are there for tests.
    """

    first_seconds: float = 0.5
    longest_seconds: float = 8.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[], float] = _draw

    def pause(self, attempt: int, asked: float | None = None) -> float:
        """Seconds to wait after try `attempt` failed. Never less than what the engine `asked` for, up to
        LONGEST_RETRY_AFTER_SECONDS."""
        if asked is not None:
            return min(asked, LONGEST_RETRY_AFTER_SECONDS) + self.first_seconds * self.draw()
        doubled = self.first_seconds * 2.0 ** min(attempt - 1, 64)
        return min(self.longest_seconds, doubled) * self.draw()


async def persist(
    once: Callable[[], Awaitable[T]], report: Callable[[FailedTry], None], *, retries: int, backoff: Backoff
) -> T:
    """What `once` returns. It is called again, at most `retries` times, while it raises TryFailedError with
    an error that is `retryable`. `report` hears of each such failure, also of the last.

    Raises the last try's error, and at once whatever else `once` raises.
    """
    attempt = 0
    while True:
        attempt += 1
        started_at, started = time.time(), time.perf_counter()
        try:
            return await once()
        except TryFailedError as failure:
            error, asked = failure.error, failure.retry_after_seconds
        report(FailedTry(attempt, started_at, time.perf_counter() - started, error))
        if not error.retryable:
            raise error
        if attempt > retries:
            error.args = (f"{error}; given up after {attempt} tries (--model-retries {retries})",)
            raise error
        pause = backoff.pause(attempt, asked)
        # Not the message: it has the engine's words, which may be those of a prompt.
        logger.info(
            "try %d of a request failed: %s, status=%s; again in %.1f s",
            attempt, type(error).__name__, error.status, pause,
        )  # fmt: skip
        await backoff.sleep(pause)


def retry_after_seconds(value: str | None, now: float) -> float | None:
    """What the header Retry-After says, as seconds from `now` (unix seconds) on; it holds whole seconds, in
    digits, or a date.

    None if it is absent, is neither, or lies in the past.
    """
    if value is None:
        return None
    if digits := _SECONDS.fullmatch(value.strip(" \t")):  # what HTTP strips: Python's own strips more
        seconds = float(digits[0])
    else:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - now
        except (ValueError, OverflowError, OSError):
            return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
