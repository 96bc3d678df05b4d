"""The hook that takes episodes out of the worker, and the threads in which it is called."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import weakref
from typing import TYPE_CHECKING, Final, Protocol

from env_worker.thread_pool import started_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import ThreadPoolExecutor

    from env_worker.arrays.store import ArrayStore
    from env_worker.domain import Episode, SamplingParams

logger = logging.getLogger(__name__)

BUILT_IN_HOOKS: Final[Mapping[str, str]] = {"array-keeper": "env_worker.arrays.keeper:array_keeper"}
"""Hooks that are there, by name, as module:attribute."""


class EpisodeHook(Protocol):
    """Takes finished episodes, training arrays and all. Both methods are plain functions, called in threads.

    Every episode that was passed to `keep` is either delivered to its caller or handed to `discard`, exactly
    once and never while its `keep` still runs, for as long as the process lives.

    A hook that keeps arrays in this process may also have

    - `held_arrays: int`: how many episodes' arrays it holds, from `keep` on until they were released or
      discarded;
    - `held_array_bytes: int`: their bytes.

    Both, attributes or properties, are read in a thread of their own with every heartbeat, a property for at
    most 0.25 s. A pool that shrinks leaves a worker alone that holds some; one that stops stays for them, at
    most `linger_seconds`, and says by its exit code that some were left. If they cannot be read, that is
    logged once, and what was read last counts; where nothing was read since something was kept, some are
    taken to be held. A hook that `set_episode_hook` replaced is asked until it holds none.

    One that keeps them in an `env_worker.arrays.store.ArrayStore`, as ArrayKeeper does, has that as its
    attribute `array_store`, which is read once. Then this worker's TrainingArrayService serves the store,
    also after the hook was replaced, the references that it writes name this worker, and room for one more
    episode is reserved in it before a run is admitted: where there is none, the run is refused. A store
    belongs to one worker: runs of another one that has the same hook fail. The worker's limits hold for each
    store by itself: what a replaced hook holds counts in its own, and its successor has all of them again.
    """

    def keep(self, episode: Episode, sampling: SamplingParams) -> None:
        """Take what the trainer will want. Called once for each finished episode, also where `episode.ok` is
        False.

        May write references into `trace.info`: they are streamed with the last delta. When it returns, the
        worker forgets its own references to the arrays. If it raises, the episode goes to `discard` and the
        run fails.
        """

    def discard(self, episode: Episode) -> None:
        """Free what `keep` took: the episode was not delivered.

        Before the reply it gets the episode that `keep` saw, afterwards an episode of the same id, head,
        trace ids and infos without nodes. If it raises, that is logged, and it is not called again.
        """


class HookLoadError(Exception):
    """A hook that cannot be used; the message says why and what to do."""


def check_hook(hook: object, source: str) -> EpisodeHook:
    """`hook` if it can be called as an EpisodeHook. HookLoadError naming `source` and the method
    otherwise."""
    if inspect.isclass(hook):
        raise HookLoadError(f"{source} is the class {hook.__name__}; pass an instance of it")
    _check_array_store(hook, source)
    for name, arguments in (("keep", 2), ("discard", 1)):
        method = getattr(hook, name, None)
        if not callable(method):
            raise HookLoadError(
                f"{source} is no episode hook: {type(hook).__name__} has no method {name}; define "
                "keep(self, episode, sampling) and discard(self, episode)"
            )
        called = method if inspect.isroutine(method) else type(method).__call__
        if any(map(_never_runs, (method, called))):
            raise HookLoadError(
                f"{source} is no episode hook: {type(hook).__name__}.{name} is a coroutine or generator "
                "function; "
                "make it a plain function, it is called in a thread of its own"
            )
        try:
            inspect.signature(method).bind(*range(arguments))
        except TypeError as error:
            raise HookLoadError(
                f"{source} is no episode hook: {type(hook).__name__}.{name} cannot be called with "
                f"{arguments} arguments ({error}); define keep(self, episode, sampling) and "
                "discard(self, episode)"
            ) from error
        except ValueError:
            pass  # a callable that does not tell its signature
    return hook  # type: ignore[return-value]


def _check_array_store(hook: object, source: str) -> None:
    """Arrays that would be lost, or served by nobody, are not found out at the first episode."""
    from env_worker.arrays.keeper import ArrayKeeper  # only here: user modules import this one

    # Not read as an attribute is: a property is the user's code.
    store = inspect.getattr_static(hook, "array_store", None)
    if store is None and isinstance(hook, ArrayKeeper):
        raise HookLoadError(
            f"{source} is an ArrayKeeper without its array_store: {type(hook).__name__}.__init__ does not "
            "call super().__init__(); call it first"
        )
    if isinstance(store, ArrayKeeper):
        raise HookLoadError(
            f"{source} has an ArrayKeeper as its array_store, which is not served; assign the keeper's own: "
            "self.array_store = keeper.array_store"
        )


def _never_runs(function: object) -> bool:
    return (
        inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
        or inspect.isgeneratorfunction(function)
    )


_stores: Final[dict[int, tuple[Callable[[], object], ArrayStore]]] = {}
"""By the id of their hook, each with what gives the hook, or None when it is gone."""


def array_store(hook: EpisodeHook | None) -> ArrayStore | None:
    """The hook's `array_store`, the one that it had when it was read first; None where it has none.

    Raises the Exception that reading the attribute raises, and RuntimeError for what is none: it is the
    user's code, and read on the event loop, which SystemExit would end.
    """
    key = id(hook)
    if (known := _stores.get(key)) is not None and known[0]() is hook:
        return known[1]
    try:
        store = getattr(hook, "array_store", None)
    except Exception:
        raise
    except BaseException as error:
        what = f"reading array_store of {type(hook).__name__} raised {type(error).__name__}: {error}"
        raise RuntimeError(f"{what}; make it a plain attribute") from error
    if store is None:
        return None
    from env_worker.arrays.store import ArrayStore  # only where it is used: user modules import this one

    if not isinstance(store, ArrayStore):
        return None
    alive: Callable[[], object]
    try:
        alive = weakref.ref(hook, lambda _: _stores.pop(key, None))
    except TypeError:  # it has no place for one, so it stays
        alive = lambda: hook  # noqa: E731
    # A property that makes another store each time may be read by several threads at once.
    return _stores.setdefault(key, (alive, store))[1]


_current: EpisodeHook | None = None


def set_episode_hook(hook: EpisodeHook | None) -> None:
    """Hand every episode that finishes from now on to `hook`; None: to nobody, so that its arrays are
    dropped.

    An episode that another hook kept is discarded by that one. HookLoadError if it is not a hook.
    """
    global _current
    _current = None if hook is None else check_hook(hook, f"set_episode_hook({hook!r})")


def current_hook() -> EpisodeHook | None:
    """The hook that was set last."""
    return _current


def load_hook(spec: str) -> EpisodeHook:
    """The hook that `module:attribute` names, or that the class or function of that name returns; or that of
    BUILT_IN_HOOKS.

    HookLoadError naming the spec and the reason if there is none.
    """
    module_name, colon, path = BUILT_IN_HOOKS.get(spec, spec).partition(":")
    if not (module_name and colon and path):
        raise HookLoadError(
            f"hook {spec!r} is not of the form module:attribute, e.g. my_hooks:hook, nor one of those that "
            f"are built in: {', '.join(BUILT_IN_HOOKS)}"
        )
    try:
        loaded: object = importlib.import_module(module_name)
        for name in path.split("."):
            loaded = getattr(loaded, name)
        # What has both methods is the hook itself, also when it can be called.
        made = inspect.isclass(loaded) or not (hasattr(loaded, "keep") and hasattr(loaded, "discard"))
        if made and callable(loaded):
            loaded = loaded()
    except (Exception, SystemExit) as error:  # whatever the module does when it is imported
        raise HookLoadError(
            f"hook {spec!r} cannot be loaded: {type(error).__name__}: {error}; check that the module is on "
            "PYTHONPATH and that the attribute is a hook, or returns one when it is called without arguments"
        ) from error
    return check_hook(loaded, f"hook {spec!r}")


class HookThreads:
    """Two bounded pools: keeps never wait behind discards, nor discards behind keeps. Belongs to one event
    loop. RuntimeError if their threads cannot be started."""

    def __init__(self, keep_threads: int = 4, discard_threads: int = 2) -> None:
        self._keeps: Final = started_pool(keep_threads, "hook-keep")
        self._discards: Final = started_pool(discard_threads, "hook-discard")
        # The pool's own queue would hide when a keep begins, and a run that waits can still be cancelled.
        self.free_keep_threads: Final = asyncio.Semaphore(keep_threads)
        """Hold one around `keep`: then it begins at once."""
        self._keepers: Final[dict[int, EpisodeHook]] = {}

    async def keep(
        self, hook: EpisodeHook, episode: Episode, sampling: SamplingParams
    ) -> BaseException | None:
        """Call `hook.keep` in its thread; what it raised, of whatever kind, is returned."""
        error = await self._call(self._keeps, lambda: hook.keep(episode, sampling))
        self._keepers[id(hook)] = hook
        return error

    def take_keepers(self) -> list[EpisodeHook]:
        """The hooks that have kept something since they were last taken."""
        keepers = list(self._keepers.values())
        self._keepers.clear()
        return keepers

    async def discard(self, hook: EpisodeHook, episode: Episode) -> BaseException | None:
        """Call `hook.discard` in its thread; what it raised, of whatever kind, is returned."""
        return await self._call(self._discards, lambda: hook.discard(episode))

    def close(self) -> None:
        """Take no more calls. Does not wait for those that run."""
        self._keeps.shutdown(wait=False)
        self._discards.shutdown(wait=False)

    async def _call(self, pool: ThreadPoolExecutor, function: Callable[[], object]) -> BaseException | None:
        try:
            called = asyncio.get_running_loop().run_in_executor(pool, _outcome, function)
        except RuntimeError as error:  # closed: it will not be called
            return error
        return await called


def _outcome(function: Callable[[], object]) -> BaseException | None:
    # Returned, not raised: SystemExit or StopIteration in a future would end the loop, or hang whoever waits.
    try:
        returned = function()
        if inspect.isawaitable(returned):
            # A decorator can hide from `check_hook` what the method is.
            if inspect.iscoroutine(returned):
                returned.close()
            raise TypeError("it returned an awaitable, which nobody awaits; make it a plain function")
    except BaseException as error:
        return error
    return None
