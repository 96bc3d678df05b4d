"""How many training arrays the episode hook holds in this process."""

from __future__ import annotations

import asyncio
import logging
import operator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from env_worker.domain import EpisodeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_worker.hook import EpisodeHook

logger = logging.getLogger(__name__)

READ_SECONDS: Final = 0.25
"""A hook that takes longer to say what it holds is not waited for."""
_MAX_EPISODES: Final = 2**32 - 1
_MAX_BYTES: Final = 2**64 - 1


class Held(NamedTuple):
    """Training arrays that end with this process."""

    episodes: int = 0
    """Episodes whose arrays are held."""
    bytes: int = 0
    """Their bytes."""

    def __str__(self) -> str:
        return f"the training arrays of {self.episodes} episodes ({self.bytes} bytes)"


class HeldArrays:
    """Reads the hook's `held_arrays` and `held_array_bytes`. For one event loop.

    In a thread of its own: a property that waits for a lock holds up no heartbeat.

    What cannot be read (it raises, is no whole number from 0, or takes too long) is logged once, and what was
    read last counts; 0 before.

    Args:
        hook: gives the hook that is asked; None holds nothing.
    """

    def __init__(self, hook: Callable[[], EpisodeHook | None]) -> None:
        self._hook: Final = hook
        self._loop: Final = asyncio.get_running_loop()
        self._thread: Final = ThreadPoolExecutor(1, "hook-held")
        self._reading: asyncio.Future[Held | BaseException] | None = None
        self._patience_ends = 0.0
        self._last = Held()
        self._told = self._closed = False

    async def read(self) -> Held:
        """What is held now. Takes at most READ_SECONDS, and raises nothing that the hook raised."""
        hook = self._hook()
        if hook is None or self._closed:
            return self._last
        if self._reading is None:
            try:
                self._reading = self._loop.run_in_executor(self._thread, _read, hook)
            except RuntimeError as error:  # no thread can be started
                self._tell(str(error))
                return self._last
            self._reading.add_done_callback(self._has_read)
            self._patience_ends = self._loop.time() + READ_SECONDS
        # One that is slow is not asked twice at once, and whoever comes later waits for it no longer.
        timeout = max(0.0, self._patience_ends - self._loop.time())
        done, _ = await asyncio.wait((self._reading,), timeout=timeout)
        if not done:
            self._tell(f"it has not answered after {READ_SECONDS:g} s")
        return self._last

    def close(self) -> None:
        """Ask no more. Does not wait for a hook that is being asked."""
        self._closed = True
        self._thread.shutdown(wait=False)

    def _has_read(self, reading: asyncio.Future[Held | BaseException]) -> None:
        self._reading = None
        if reading.cancelled():
            return
        if isinstance(read := reading.result(), Held):
            self._last = read
        else:
            self._tell(EpisodeError.from_exception(read).message)

    def _tell(self, what: str) -> None:
        if not self._told:
            self._told = True
            logger.error(
                "reason=HOOK_FAILED the hook does not say what it holds: %s; make held_arrays and "
                "held_array_bytes whole numbers from 0 that are read quickly; what was read last counts, %s",
                what, self._last,
            )  # fmt: skip


def _read(hook: EpisodeHook) -> Held | BaseException:
    # Returned, not raised: SystemExit or StopIteration in a future would end the loop, or hang whoever waits.
    try:
        episodes, size = getattr(hook, "held_arrays", 0), getattr(hook, "held_array_bytes", 0)
        return Held(_whole(episodes, _MAX_EPISODES), _whole(size, _MAX_BYTES))
    except BaseException as error:
        return error


def _whole(value: object, limit: int) -> int:
    number = operator.index(value)  # type: ignore[arg-type]  # it says so itself
    if number < 0:
        raise ValueError(f"{number} is below 0")
    return min(number, limit)
