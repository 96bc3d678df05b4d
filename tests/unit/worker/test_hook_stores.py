"""The store of a hook is the one that it had first, for as long as the hook lives."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from env_worker import hook as module
from env_worker.arrays.limits import ArrayLimits
from env_worker.arrays.serving import ArrayServing
from env_worker.arrays.store import ArrayStore
from env_worker.hook import array_store
from tests.helpers.array_episodes import HOME

if TYPE_CHECKING:
    from env_worker.domain import Episode, SamplingParams


class Hook:
    """Does nothing."""

    def keep(self, episode: Episode, sampling: SamplingParams) -> None: ...

    def discard(self, episode: Episode) -> None: ...


class Making(Hook):
    """Makes a store whenever it is asked for it."""

    @property
    def array_store(self) -> ArrayStore:
        return ArrayStore()


class Slotted:
    """Cannot be referenced weakly."""

    __slots__ = ("array_store",)

    keep = Hook.keep
    discard = Hook.discard

    def __init__(self) -> None:
        self.array_store: Any = ArrayStore()


@pytest.mark.parametrize("made", [Making, Slotted])
def test_it_is_read_once(made: type) -> None:
    first, second = made(), made()
    assert array_store(first) is array_store(first)
    assert array_store(second) is array_store(second) is not array_store(first)
    if made is Slotted:
        kept, second.array_store = second.array_store, None
        assert array_store(second) is kept


async def test_a_worker_has_no_more_stores_than_hooks() -> None:
    hook = Making()
    serving = ArrayServing(HOME, ArrayLimits(2**20), lambda: hook)
    for _ in range(5):
        serving.adopt(hook)
        assert serving.offered
    assert len(serving.stats()) == 1
    await serving.close()


def test_it_goes_with_its_hook() -> None:
    gc.collect()
    before = len(module._stores)
    hook = Making()
    store = array_store(hook)
    assert store is not None
    gone = weakref.ref(store)
    assert len(module._stores) == before + 1
    del hook, store
    gc.collect()
    assert gone() is None
    assert len(module._stores) == before


def test_a_hook_without_one_may_get_one_yet() -> None:
    hook: Any = Hook()
    assert array_store(hook) is None
    hook.array_store = "none"
    assert array_store(hook) is None
    hook.array_store = store = ArrayStore()
    assert array_store(hook) is store
    assert array_store(None) is None


def test_what_reading_it_raises_is_raised_each_time() -> None:
    class Raising(Hook):
        @property
        def array_store(self) -> ArrayStore:
            raise OSError("not now")

    hook = Raising()
    for _ in range(2):
        with pytest.raises(OSError, match="not now"):
            array_store(hook)
