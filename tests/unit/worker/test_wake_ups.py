"""Wake-ups of one loop by changes in other threads: few, none too early, and none is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from env_worker.wake_ups import COALESCE_SECONDS, WakeUps

if TYPE_CHECKING:
    from collections.abc import Callable


async def in_a_thread(work: Callable[[], None]) -> None:
    """To its end, while this loop stands still: so that no wake-up comes in between."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


async def test_many_changes_are_one_wake_up_and_a_later_one_is_another() -> None:
    woken, count = asyncio.Event(), 0

    def wake() -> None:
        nonlocal count
        count += 1
        woken.set()

    wake_up = WakeUps(asyncio.get_running_loop()).listener(wake)

    def change_often() -> None:
        for _ in range(1000):
            wake_up()

    for expected in (1, 2):
        woken.clear()
        await in_a_thread(change_often)
        await asyncio.wait_for(woken.wait(), 5)
        assert count == expected


async def test_a_wake_up_leaves_the_changes_of_a_turn_their_time() -> None:
    woken: asyncio.Queue[tuple[int, float]] = asyncio.Queue()
    wake_ups = WakeUps(asyncio.get_running_loop())
    changed = [0.0] * 20

    def wake(number: int) -> None:
        woken.put_nowait((number, time.monotonic()))

    def change_one_after_the_other() -> None:  # so that the timer is armed for another one already
        for number in range(len(changed)):
            changed[number] = time.monotonic()
            wake_ups.listener(partial(wake, number))()
            time.sleep(COALESCE_SECONDS / 4)

    thread = threading.Thread(target=change_one_after_the_other)
    thread.start()
    for expected in range(len(changed)):
        number, at = await asyncio.wait_for(woken.get(), 5)
        assert number == expected
        assert at - changed[number] >= COALESCE_SECONDS
    thread.join()


async def test_while_one_listener_waits_a_change_of_another_does_not_wake_the_loop(monkeypatch: Any) -> None:
    loop, calls = asyncio.get_running_loop(), 0
    call = loop.call_soon_threadsafe

    def counted(*args: Any, **options: Any) -> asyncio.Handle:
        nonlocal calls
        calls += 1
        return call(*args, **options)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    wake_ups, woken = WakeUps(loop), asyncio.Semaphore(0)
    listeners = [wake_ups.listener(woken.release) for _ in range(64)]

    def change_all() -> None:
        for listener in listeners:
            listener()

    for rounds in (1, 2):
        await in_a_thread(change_all)
        for _ in listeners:
            await asyncio.wait_for(woken.acquire(), 5)
        assert calls == rounds


async def test_whatever_the_threads_do_every_change_is_followed_by_a_look() -> None:
    listeners, changes = 5, 400
    made, seen = [0] * listeners, [0] * listeners
    all_seen = asyncio.Event()
    wake_ups = WakeUps(asyncio.get_running_loop())

    def look(number: int) -> None:
        seen[number] = made[number]
        if sum(seen) == listeners * changes:
            all_seen.set()

    def change(number: int) -> None:
        wake_up = wake_ups.listener(lambda: look(number))
        for count in range(changes):
            made[number] += 1
            wake_up()
            if count % 8 == number:
                time.sleep(COALESCE_SECONDS / 8)  # so that changes meet every moment of the timer

    threads = [threading.Thread(target=change, args=(number,)) for number in range(listeners)]
    for thread in threads:
        thread.start()
    await asyncio.wait_for(all_seen.wait(), 30)
    for thread in threads:
        thread.join()


def test_a_change_after_the_end_of_the_loop_is_nothing() -> None:
    loop = asyncio.new_event_loop()
    wake_up = WakeUps(loop).listener(lambda: None)
    loop.close()
    wake_up()
