"""How many training arrays episode hooks hold in this process."""

from __future__ import annotations

import asyncio
import logging
import operator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from env_worker.domain import EpisodeError
from env_worker.hook import array_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
    unknown: bool = False
    """Whether a hook did not say how many it holds; it counts as one, of 0 bytes."""

    def __str__(self) -> str:
        if self.unknown:
            return "training arrays of a hook that does not say how many"
        return f"the training arrays of {self.episodes} episodes ({self.bytes} bytes)"


_NONE: Final = Held()
_UNKNOWN: Final = Held(1, 0, unknown=True)


class HeldArrays:
    """Reads `held_arrays` and `held_array_bytes` of every hook that may hold some, or of its `array_store`
    where it has neither. Those are the current one, and those before it until they hold none. For one event
    loop.

    Each in a thread of its own: a property that waits for a lock holds up no heartbeat.

    What cannot be read (it raises, is no whole number from 0, or takes too long) is logged once, and what was
    read last counts. Where nothing was read since something was kept, that is held.

    Args:
        hook: gives the current hook; None holds nothing.
        take_keepers: gives the hooks that have kept something since it was last called.
    """

    def __init__(
        self,
        hook: Callable[[], EpisodeHook | None],
        take_keepers: Callable[[], Iterable[EpisodeHook]] = tuple,
    ) -> None:
        self._hook: Final = hook
        self._take_keepers: Final = take_keepers
        self._asked: Final[dict[int, _Asked]] = {}
        self._closed = False

    async def read(self) -> Held:
        """What is held now. Takes at most READ_SECONDS, and raises nothing that a hook raised."""
        current = self._hook()
        if not self._closed:
            for hook in self._take_keepers():
                self._of(hook).kept()
            if current is not None:
                self._of(current)
            await asyncio.gather(*(asked.read() for asked in self._asked.values()))
            for key, asked in list(self._asked.items()):
                if asked.hook is not current and asked.last == _NONE:
                    self._asked.pop(key).close()
        held = [asked.last for asked in self._asked.values()]
        return Held(
            min(sum(one.episodes for one in held), _MAX_EPISODES),
            min(sum(one.bytes for one in held), _MAX_BYTES),
            any(one.unknown for one in held),
        )

    def close(self) -> None:
        """Ask no more. Does not wait for a hook that is being asked."""
        self._closed = True
        for asked in self._asked.values():
            asked.close()

    def _of(self, hook: EpisodeHook) -> _Asked:
        if (key := id(hook)) not in self._asked:
            self._asked[key] = _Asked(hook)
        return self._asked[key]


class _Asked:
    """One hook that is asked, in a thread of its own."""

    def __init__(self, hook: EpisodeHook) -> None:
        self.hook: Final = hook
        self.last = _NONE
        """What counts."""
        self._loop: Final = asyncio.get_running_loop()
        self._thread: Final = ThreadPoolExecutor(1, "hook-held")
        self._reading: asyncio.Future[Held | BaseException] | None = None
        self._patience_ends = 0.0
        self._told = self._closed = False

    def kept(self) -> None:
        """It has kept something, so that it does not hold nothing before it says so."""
        if not self.last.episodes:
            self.last = _UNKNOWN

    async def read(self) -> None:
        """Ask it. Takes at most READ_SECONDS, and raises nothing."""
        if self._closed:
            return
        if self._reading is None:
            try:
                self._reading = self._loop.run_in_executor(self._thread, _read, self.hook)
            except RuntimeError as error:  # no thread can be started
                self._tell(str(error))
                return
            self._reading.add_done_callback(self._has_read)
            self._patience_ends = self._loop.time() + READ_SECONDS
        # One that is slow is not asked twice at once, and whoever comes later waits for it no longer.
        timeout = max(0.0, self._patience_ends - self._loop.time())
        done, _ = await asyncio.wait((self._reading,), timeout=timeout)
        if not done:
            self._tell(f"it has not answered after {READ_SECONDS:g} s")

    def close(self) -> None:
        """Ask it no more."""
        self._closed = True
        self._thread.shutdown(wait=False)

    def _has_read(self, reading: asyncio.Future[Held | BaseException]) -> None:
        self._reading = None
        if reading.cancelled():
            return
        if isinstance(read := reading.result(), Held):
            self.last = read
        else:
            self._tell(EpisodeError.from_exception(read).message)

    def _tell(self, what: str) -> None:
        if not self._told:
            self._told = True
            logger.error(
                "reason=HOOK_FAILED the hook does not say what it holds: %s; make held_arrays and "
                "held_array_bytes whole numbers from 0 that are read quickly; what was read last counts, or, "
                "if nothing was read since it kept something, that it holds some: %s",
                what, self.last,
            )  # fmt: skip


def _read(hook: EpisodeHook) -> Held | BaseException:
    # Returned, not raised: SystemExit or StopIteration in a future would end the loop, or hang whoever waits.
    try:
        # A hook that wraps the ready-made keeper need not say again what the store says.
        store = array_store(hook)
        episodes = getattr(hook, "held_arrays", getattr(store, "held_arrays", 0))
        size = getattr(hook, "held_array_bytes", getattr(store, "held_array_bytes", 0))
        return Held(_whole(episodes, _MAX_EPISODES), _whole(size, _MAX_BYTES))
    except BaseException as error:
        return error


def _whole(value: object, limit: int) -> int:
    number = operator.index(value)  # type: ignore[arg-type]  # it says so itself
    if number < 0:
        raise ValueError(f"{number} is below 0")
    return min(number, limit)
