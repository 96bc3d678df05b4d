"""The stores of training arrays that a worker serves."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from env_worker.arrays.errors import ArraysNotFoundError
from env_worker.arrays.pieces import Pieces
from env_worker.arrays.store import Released
from env_worker.arrays.threads import ArrayThreads
from env_worker.hook import array_store
from env_worker.tasks import log_failure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from concurrent.futures import Future

    from env_worker.arrays.fetch import Fetch
    from env_worker.arrays.limits import ArrayLimits, Home
    from env_worker.arrays.stats import ArrayStats
    from env_worker.arrays.store import ArrayStore
    from env_worker.hook import EpisodeHook

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

CAPABILITY: Final = "training-arrays"
_OPENING: Final = 2
"""Fetches of each medium that are opened at once."""
EXPIRE_SECONDS: Final = 1.0
"""How often leases are looked at."""


class Fetching(NamedTuple):
    """A fetch that is under way."""

    fetch: Fetch
    offer: dict[str, str] | None
    """As `Fetch.offer`; None where none was asked for."""
    pieces: Pieces
    """Its body."""


class ArrayServing:
    """Knows the stores of all hooks that a worker had, and does in threads what may take long. For one event
    loop.

    Arrays are found whichever hook kept them: a store is served until the worker ends, also when
    `set_episode_hook` has put another hook in its hook's place.

    Args:
        home: the worker, as references name it.
        limits: for what a store's hook leaves to the worker.
        hook: gives the current hook.
        reasons: for limits by their names, how the worker came to them; logged for a store that has them.
    """

    def __init__(
        self,
        home: Home,
        limits: ArrayLimits,
        hook: Callable[[], EpisodeHook | None],
        reasons: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.home: Final = home
        self._limits: Final = limits
        self._reasons: Final = reasons
        self._hook: Final = hook
        self._unserved: EpisodeHook | None = None
        self._stores: tuple[ArrayStore, ...] = ()
        self._threads: ArrayThreads | None = None
        """There where there are stores."""
        # Fewer than there are threads, or the pieces of streams would wait for whatever is to be opened.
        self._opening: Final = {spilled: asyncio.Semaphore(_OPENING) for spilled in (False, True)}
        self._expiry: Final = asyncio.get_running_loop().create_task(self._expire(), name="array-leases")
        self._expiry.add_done_callback(log_failure)

    @property
    def offered(self) -> bool:
        """Whether there is a store that can be asked."""
        self._adopt_current()
        return bool(self._stores)

    def capabilities(self) -> list[str]:
        """What Describe lists of it."""
        return [CAPABILITY] if self.offered else []

    def adopt(self, hook: EpisodeHook) -> None:
        """Serve the store of a hook that has one (attribute `array_store`), and tell it its worker.

        To adopt a hook again changes nothing. ValueError if the store is another worker's, RuntimeError if
        threads cannot be started; whatever reading the attribute raises.
        """
        store = array_store(hook)
        if store is not None and store not in self._stores:
            self._threads = self._threads or ArrayThreads()
            store.attach(self.home, self._limits)
            self._stores = (store, *self._stores)
            self._tell_of(store)

    def stats(self) -> list[ArrayStats]:
        """What the stores say of themselves, that of the latest hook first. Also for other threads."""
        return [store.stats() for store in self._stores]

    @asynccontextmanager
    async def fetching(
        self, key: str, fields: Sequence[str], start: int, end: int | None, *, offering: bool = False
    ) -> AsyncIterator[Fetching]:
        """A fetch, opened as `ArrayStore.open` does and closed at the end."""
        store, spilled = self._find(key)
        assert self._threads is not None
        threads = self._threads.of(spilled=spilled)
        async with self._opening[spilled]:
            opening = threads.submit(_open, store, key, fields, start, end, offering)
            try:
                fetch, offer = await asyncio.wrap_future(opening)
            except asyncio.CancelledError:
                opening.add_done_callback(_close_unwanted)
                raise
        try:
            yield Fetching(fetch, offer, Pieces(fetch, threads))
        finally:
            # In a thread: it may be the last that holds a segment, and to give gigabytes back takes a while.
            try:
                threads.submit(fetch.close)
            except RuntimeError:  # the worker ends
                fetch.close()

    async def release(self, keys: Sequence[str]) -> Released:
        """Free these; `not_found` are those that no store has."""
        released = await self._of_all(lambda store: store.release(keys))
        return released._replace(not_found=len(keys) - released.released)

    async def release_owner(self, owner: str) -> Released:
        """Free all whose run named this owner."""
        return await self._of_all(lambda store: store.release_owner(owner))

    async def close(self) -> None:
        """Free everything: arrays end with their worker."""
        self._expiry.cancel()
        await asyncio.gather(self._expiry, return_exceptions=True)
        for store in self._stores:
            await self._in_thread(store.close)
        if self._threads is not None:
            self._threads.close()

    def _tell_of(self, store: ArrayStore) -> None:
        """Log how the worker came to the limits that this one has from it."""
        ours, its = self._limits, store.limits
        for name, reason in self._reasons.items():
            spills_elsewhere = name == "spill_bytes" and its is not None and its.spill_dir != ours.spill_dir
            if getattr(its, name) == getattr(ours, name) and not spills_elsewhere:
                logger.info("%s", reason)

    def _adopt_current(self) -> None:
        """Also a hook that has kept nothing yet, or that nobody told this worker of."""
        hook = self._hook()
        if hook is None or hook is self._unserved:
            return
        try:
            self.adopt(hook)
        except Exception as error:  # the attribute may be the user's code
            self._unserved = hook
            logger.error("reason=HOOK_FAILED the hook's arrays are not served: %s", error)

    def _find(self, key: str) -> tuple[ArrayStore, bool]:
        """The store that has it, and whether it lies on a disk. ArraysNotFoundError."""
        missing = ArraysNotFoundError(key)
        for store in self._stores:
            try:
                return store, store.spilled(key)
            except ArraysNotFoundError as error:
                missing = error
        raise missing

    async def _of_all(self, release: Callable[[ArrayStore], Released]) -> Released:
        """What `release` frees in all stores."""
        parts = [await self._in_thread(partial(release, store)) for store in self._stores]
        return Released(*map(sum, zip(*parts, strict=True))) if parts else Released(0, 0, 0)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            self._adopt_current()
            for store in self._stores:
                try:
                    await self._in_thread(store.expire)
                except Exception:
                    logger.exception("reason=INTERNAL leases of training arrays could not be looked at")

    async def _in_thread(self, function: Callable[[], _T]) -> _T:
        assert self._threads is not None
        return await asyncio.get_running_loop().run_in_executor(self._threads.freeing, function)


def _open(
    store: ArrayStore, key: str, fields: Sequence[str], start: int, end: int | None, offering: bool
) -> tuple[Fetch, dict[str, str] | None]:
    fetch = store.open(key, fields, start, end)
    try:
        return fetch, fetch.offer() if offering else None
    except BaseException:
        fetch.close()
        raise


def _close_unwanted(opening: Future[tuple[Fetch, dict[str, str] | None]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()
