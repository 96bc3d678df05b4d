"""What a hook says that it holds, also one that does not say it well."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from env_worker import held_arrays
from env_worker.arrays.limits import ArrayLimits, Home
from env_worker.arrays.store import ArrayStore
from env_worker.held_arrays import Held, HeldArrays
from tests.helpers.array_service import kept

if TYPE_CHECKING:
    from collections.abc import Iterator

    from env_worker.domain import Episode, SamplingParams
    from env_worker.hook import EpisodeHook


class Plain:
    """A hook without the attributes."""

    def keep(self, episode: Episode, sampling: SamplingParams) -> None: ...

    def discard(self, episode: Episode) -> None: ...


class Says(Plain):
    """A hook whose `held_arrays` does what the test wants."""

    def __init__(self, held: Any = 0, held_bytes: Any = 0) -> None:
        self.held = held
        self.held_array_bytes = held_bytes

    @property
    def held_arrays(self) -> Any:
        if isinstance(self.held, BaseException):
            raise self.held
        return self.held() if callable(self.held) else self.held


@contextmanager
def asking(hook: Plain | None) -> Iterator[HeldArrays]:
    held = HeldArrays(lambda: hook)
    yield held
    held.close()


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        (None, Held(0, 0)),
        (Plain(), Held(0, 0)),
        (Says(3, 2**40), Held(3, 2**40)),
        (Says(np.int64(3), np.int64(5)), Held(3, 5)),
        (Says(2**70, 2**70), Held(2**32 - 1, 2**64 - 1)),
    ],
)
async def test_what_the_hook_holds(hook: Plain | None, expected: Held) -> None:
    with asking(hook) as held:
        assert await held.read() == expected


async def test_a_hook_around_a_store_holds_what_the_store_says_unless_it_says_so_itself() -> None:
    class Wrapping(Plain):
        array_store = ArrayStore(ArrayLimits(2**20))

    class Both(Says):
        array_store = Wrapping.array_store

    Wrapping.array_store.attach(Home("0" * 32, "127.0.0.1:1"), ArrayLimits(2**20))
    kept(Wrapping.array_store, 10)
    for hook, expected in (
        (Wrapping(), Held(1, Wrapping.array_store.held_array_bytes)),
        (Both(7, 8), Held(7, 8)),
    ):
        with asking(hook) as held:
            assert await held.read() == expected
    Wrapping.array_store.close()


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    "wrong", [-1, 1.5, None, "3", OSError("gone"), SystemExit(1), StopIteration(), UnprintableError()]
)
async def test_one_that_cannot_say_it_counts_with_what_it_said_last_and_is_logged_once(
    wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    hook = Says(wrong)
    with asking(hook) as held:
        assert await held.read() == Held(0, 0), "it has said nothing yet"
        hook.held = 4
        assert await held.read() == Held(4, 0)
        hook.held = wrong
        assert await held.read() == Held(4, 0)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "held_arrays" in said
    assert "whole numbers from 0" in said


async def test_one_that_blocks_is_waited_for_once_and_asked_once_at_a_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(held_arrays, "READ_SECONDS", 0.01)
    asked, go = threading.Semaphore(0), threading.Event()

    def block() -> int:
        asked.release()
        go.wait(5)
        return 7

    with asking(Says(block)) as held:
        assert [await held.read() for _ in range(100)] == [Held(0, 0)] * 100
        assert asked.acquire(timeout=5)
        assert not asked.acquire(blocking=False)
        go.set()
        (asked_hook,) = held._asked.values()
        reading = asked_hook._reading
        assert reading is not None
        await asyncio.wait((reading,), timeout=5)
        assert await held.read() == Held(7, 0)
    assert len(caplog.records) == 1


async def test_two_that_ask_together_get_the_same_answer_and_nobody_gets_one_after_its_end() -> None:
    with asking(Says(2)) as held:
        assert await asyncio.gather(held.read(), held.read()) == [Held(2, 0)] * 2
    assert await held.read() == Held(2, 0)


class Hooks:
    """Hooks that follow each other, and those that kept something since that was asked."""

    def __init__(self, *hooks: Plain) -> None:
        self.current: EpisodeHook | None = hooks[0]
        self.keepers: list[EpisodeHook] = list(hooks)

    def take(self) -> list[EpisodeHook]:
        taken, self.keepers = self.keepers, []
        return taken


async def test_a_hook_that_was_replaced_is_asked_until_it_holds_none() -> None:
    hooks = Hooks(first := Says(2, 20), second := Says(1, 5))
    held = HeldArrays(lambda: hooks.current, hooks.take)
    assert await held.read() == Held(3, 25)
    hooks.current = None
    assert await held.read() == Held(3, 25)
    first.held, second.held = 0, 4
    first.held_array_bytes = 0
    assert await held.read() == Held(4, 5)
    first.held = 9
    assert await held.read() == Held(4, 5), "it has kept nothing since"
    hooks.keepers = [first]
    assert await held.read() == Held(13, 5)
    assert len(held._asked) == 2
    first.held = second.held = second.held_array_bytes = 0
    assert await held.read() == Held()
    assert not held._asked, "nobody is remembered for good"
    held.close()


async def test_one_that_kept_and_never_said_what_it_holds_holds_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_arrays, "READ_SECONDS", 0.01)
    unknown = Held(1, 0, unknown=True)
    go = threading.Event()
    hooks = Hooks(Says(OSError("gone")), Says(lambda: go.wait(5) and 0))
    held = HeldArrays(lambda: hooks.current, hooks.take)
    assert await held.read() == Held(2, 0, unknown=True)
    assert "does not say how many" in str(await held.read())
    go.set()
    while (await held.read()).episodes == 2:  # the one that was slow
        pass
    assert await held.read() == unknown
    monkeypatch.setattr(held_arrays, "READ_SECONDS", 20.0)  # so that it does say it
    (hook,) = (asked.hook for asked in held._asked.values())
    hook.held = 0
    while await held.read() != Held():  # one that began before may still be under way
        pass
    hook.held = OSError("gone")
    assert await held.read() == Held(), "what was read last counts"
    hooks.keepers = [hook]
    assert await held.read() == unknown
    held.close()
