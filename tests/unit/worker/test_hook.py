"""Setting, loading and calling an episode hook."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from env_worker.arrays.keeper import ArrayKeeper
from env_worker.domain import Episode, SamplingParams
from env_worker.hook import HookLoadError, HookThreads, check_hook, current_hook, load_hook, set_episode_hook

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Hook:
    def keep(self, episode: Episode, sampling: SamplingParams) -> None: ...

    def discard(self, episode: Episode) -> None: ...


class AsyncKeep(Hook):
    async def keep(self, episode: Episode, sampling: SamplingParams) -> None: ...  # type: ignore[override]


class OneArgument(Hook):
    def keep(self, episode: Episode) -> None: ...  # type: ignore[override]


class AsyncDiscard(Hook):
    async def discard(self, episode: Episode) -> None: ...  # type: ignore[override]


class GeneratorDiscard(Hook):
    def discard(self, episode: Episode) -> Any:
        yield


class AsyncCallable:
    async def __call__(self, *_: object) -> None: ...


class CallableKeep(Hook):
    keep = AsyncCallable()  # type: ignore[assignment]


class Uninitialised(ArrayKeeper):
    def __init__(self) -> None: ...


class KeeperAsStore(Hook):
    def __init__(self) -> None:
        self.array_store = ArrayKeeper()


class NoDiscard:
    def keep(self, episode: Episode, sampling: SamplingParams) -> None: ...


@pytest.fixture
def no_hook() -> Iterator[None]:
    set_episode_hook(None)
    yield
    set_episode_hook(None)


@pytest.mark.usefixtures("no_hook")
def test_the_hook_that_was_set_last_counts_and_none_unsets_it() -> None:
    hook = Hook()
    set_episode_hook(hook)
    assert current_hook() is hook
    set_episode_hook(None)
    assert current_hook() is None


@pytest.mark.usefixtures("no_hook")
@pytest.mark.parametrize(
    ("hook", "named"),
    [
        (object(), "no method keep"),
        (NoDiscard(), "no method discard"),
        (AsyncKeep(), "AsyncKeep.keep is a coroutine"),
        (AsyncDiscard(), "AsyncDiscard.discard is a coroutine"),
        (GeneratorDiscard(), "GeneratorDiscard.discard is a coroutine or generator"),
        (CallableKeep(), "CallableKeep.keep is a coroutine"),
        (Hook, "is the class Hook; pass an instance"),
        (OneArgument(), "OneArgument.keep cannot be called with 2 arguments"),
        (Uninitialised(), r"Uninitialised.__init__ does not call super\(\).__init__\(\); call it first"),
        (KeeperAsStore(), "self.array_store = keeper.array_store"),
    ],
)
def test_what_is_no_hook_is_refused_and_changes_nothing(hook: Any, named: str) -> None:
    before = Hook()
    set_episode_hook(before)
    with pytest.raises(HookLoadError, match=named):
        set_episode_hook(hook)
    assert current_hook() is before


MODULE = """
class Hook:
    def keep(self, episode, sampling): ...
    def discard(self, episode): ...

class Callable(Hook):
    def __call__(self):
        raise RuntimeError("a hook is not called")

class Space:
    hook = Hook()

hook = Hook()
called = Callable()
def make():
    return hook
def makes_none():
    return None
def fails():
    raise OSError("no disk")
class Async:
    async def keep(self, episode, sampling): ...
    def discard(self, episode): ...
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "hooks_of_a_test.py").write_text(MODULE)
    (tmp_path / "exits_of_a_test.py").write_text("raise SystemExit(7)")
    monkeypatch.syspath_prepend(tmp_path)
    yield "hooks_of_a_test"
    sys.modules.pop("hooks_of_a_test", None)


@pytest.mark.parametrize("attribute", ["hook", "Hook", "make", "called", "Space.hook"])
def test_an_object_a_class_or_a_function_is_loaded(module: str, attribute: str) -> None:
    assert check_hook(load_hook(f"{module}:{attribute}"), "it")


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("hooks_of_a_test", "module:attribute"),
        (":hook", "module:attribute"),
        ("hooks_of_a_test:", "module:attribute"),
        ("hooks_of_a_test:nothing", "nothing"),
        ("hooks_of_a_test:makes_none", "NoneType has no method keep"),
        ("hooks_of_a_test:fails", "no disk"),
        ("hooks_of_a_test:Async", "coroutine"),
        ("no_such_module_at_all:hook", "No module named"),
        ("exits_of_a_test:hook", "SystemExit"),
    ],
)
@pytest.mark.usefixtures("module")
def test_what_cannot_be_loaded_is_refused_with_the_reason(spec: str, named: str) -> None:
    with pytest.raises(HookLoadError, match=named):
        load_hook(spec)


class RecordingThreads(Hook):
    def __init__(self) -> None:
        self.threads: list[str] = []

    def keep(self, episode: Episode, sampling: SamplingParams) -> None:
        self.threads.append(threading.current_thread().name)

    def discard(self, episode: Episode) -> None:
        self.threads.append(threading.current_thread().name)
        raise SystemExit("told to end")


async def test_keeps_and_discards_run_in_threads_of_their_own_and_return_what_was_raised() -> None:
    threads, hook = HookThreads(1, 1), RecordingThreads()
    episode = Episode("e", "test", {})
    assert await threads.keep(hook, episode, SamplingParams()) is None
    raised = await threads.discard(hook, episode)
    assert isinstance(raised, SystemExit)
    assert hook.threads[0].startswith("hook-keep")
    assert hook.threads[1].startswith("hook-discard")
    threads.close()


async def test_discards_do_not_wait_behind_keeps() -> None:
    threads, go, episode = HookThreads(1, 1), threading.Event(), Episode("e", "test", {})

    class Blocking(RecordingThreads):
        def keep(self, episode: Episode, sampling: SamplingParams) -> None:
            go.wait(5)

    hook = Blocking()
    keep = asyncio.create_task(threads.keep(hook, episode, SamplingParams()))
    assert isinstance(await asyncio.wait_for(threads.discard(hook, episode), 5), SystemExit)
    assert not keep.done()
    go.set()
    assert await asyncio.wait_for(keep, 5) is None
    threads.close()


async def test_a_call_that_no_thread_can_take_is_a_failure_of_that_call() -> None:
    threads = HookThreads(1, 1)
    threads.close()
    assert isinstance(await threads.keep(Hook(), Episode("e", "test", {}), SamplingParams()), RuntimeError)


async def test_a_hook_is_called_once_also_where_no_further_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads, hook = HookThreads(3, 2), RecordingThreads()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    episode = Episode("e", "test", {})
    keeps = [threads.keep(hook, episode, SamplingParams()) for _ in range(3)]
    assert await asyncio.gather(*keeps) == [None] * 3
    assert len(hook.threads) == 3
    assert isinstance(await threads.discard(hook, episode), SystemExit)
    with pytest.raises(RuntimeError, match="can't start"):
        HookThreads(1, 1)
    threads.close()


async def test_a_decorator_that_hides_an_async_method_is_found_out_when_it_is_called() -> None:
    class Decorated(Hook):
        def keep(self, episode: Episode, sampling: SamplingParams) -> Any:
            return AsyncKeep().keep(episode, sampling)

    threads = HookThreads(1, 1)
    raised = await threads.keep(check_hook(Decorated(), "it"), Episode("e", "test", {}), SamplingParams())
    assert isinstance(raised, TypeError)
    threads.close()
