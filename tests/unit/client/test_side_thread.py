"""Work beside an event loop, in a thread that holds nobody up."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from env_client.side_thread import SideThread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SECONDS = 20.0


@pytest.fixture
async def side() -> AsyncIterator[SideThread]:
    made = SideThread("envtrio-test")
    yield made
    made.close()


def fail(why: str) -> None:
    raise KeyError(why)


async def test_all_work_is_done_in_one_thread_of_its_own(side: SideThread) -> None:
    before = set(threading.enumerate())
    threads = await asyncio.gather(*[side.do(threading.current_thread) for _ in range(20)])
    (thread,) = set(threads)
    assert thread.name.startswith("envtrio-test")
    assert thread is not threading.current_thread()
    assert set(threading.enumerate()) - before == {thread}  # others may end meanwhile
    assert await side.do(divmod, 7, 2) == (3, 1)
    with pytest.raises(KeyError, match="why"):
        await side.do(fail, "why")


async def test_what_fails_leaves_nothing_for_the_garbage_collector(side: SideThread) -> None:
    with pytest.raises(KeyError):
        await side.do(fail, "at first")
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            with pytest.raises(KeyError):
                await side.do(fail, "again")
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [thing for thing in gc.garbage if isinstance(thing, KeyError | asyncio.Future)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []


async def test_work_that_nobody_waits_for_any_more_is_not_begun(side: SideThread) -> None:
    go_on, done = threading.Event(), list[int]()
    first = asyncio.create_task(side.do(go_on.wait, SECONDS))
    others = [asyncio.create_task(side.do(done.append, number)) for number in range(3)]
    await asyncio.sleep(0)
    others[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await others[1]
    go_on.set()
    await asyncio.gather(first, others[0], others[2])
    assert done == [0, 2]


async def test_closing_drops_what_was_not_begun_and_waits_for_nothing(side: SideThread) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), list[int]()

    def work() -> str:
        begun.set()
        go_on.wait(SECONDS)
        return "finished"

    running = asyncio.create_task(side.do(work))
    waiting = asyncio.create_task(side.do(done.append, 1))
    assert await asyncio.to_thread(begun.wait, SECONDS)
    side.close()
    side.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(asyncio.CancelledError):
        await side.do(done.append, 2)
    go_on.set()
    assert await running == "finished"
    assert done == []


async def test_once_is_by_a_thread_that_ends() -> None:
    thread = await SideThread.once("envtrio-once", threading.current_thread)
    thread.join(SECONDS)
    assert not thread.is_alive()
    with pytest.raises(KeyError, match="why"):
        await SideThread.once("envtrio-once", fail, "why")


def test_a_thread_that_was_not_closed_ends_with_its_owner() -> None:
    side = SideThread("envtrio-test")
    thread = asyncio.run(side.do(threading.current_thread))
    assert thread.is_alive()
    del side
    thread.join(SECONDS)
    assert not thread.is_alive()


FORKED = """
import asyncio, os, sys, time
from env_client.side_thread import SideThread

side = SideThread("envtrio-test")
asyncio.run(side.do(len, b""))
if child := os.fork():
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    sys.exit(7)
"""

LOOP_CLOSED = """
import asyncio, time
from env_client.side_thread import SideThread

async def main():
    global task
    task = asyncio.ensure_future(side.do(time.sleep, 0.2))
    task._log_destroy_pending = False
    await asyncio.sleep(0)

side = SideThread("envtrio-test")
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
loop.close()
"""


@pytest.mark.parametrize(("script", "said"), [(FORKED, "7\n"), (LOOP_CLOSED, "")], ids=["fork", "closed"])
def test_the_interpreter_ends_and_nothing_is_said(script: str, said: str) -> None:
    """Neither a fork, without the thread, nor a loop that is closed meanwhile, without a close, matters."""
    command = [sys.executable, "-W", "error", "-c", script]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, said, "")
