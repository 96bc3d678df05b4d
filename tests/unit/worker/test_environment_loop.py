"""The environments' own thread and loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from env_worker.environment_loop import EnvironmentLoop, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def loop() -> Iterator[EnvironmentLoop]:
    loop = EnvironmentLoop()
    loop.start()
    yield loop
    loop.stop()


async def ended(outcome: Outcome) -> BaseException | None:
    return await asyncio.wait_for(asyncio.wrap_future(outcome), 5)


async def test_a_coroutine_runs_in_the_environments_thread(loop: EnvironmentLoop) -> None:
    names: list[str] = []

    async def play() -> None:
        names.append(threading.current_thread().name)

    assert await ended(loop.submit(play())) is None
    assert names == ["environments"]


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()]
)
async def test_whatever_it_raises_is_its_outcome_and_the_loop_goes_on(
    loop: EnvironmentLoop, error: BaseException
) -> None:
    async def fail() -> None:
        raise error

    async def play() -> None: ...

    assert await ended(loop.submit(fail())) is error
    assert await ended(loop.submit(play())) is None


async def test_a_task_of_an_environment_that_exits_does_not_end_the_loop(loop: EnvironmentLoop) -> None:
    async def leave() -> None:
        raise SystemExit(1)

    async def play() -> None:
        task = asyncio.create_task(leave())
        await asyncio.wait((task,))
        task.exception()

    assert await ended(loop.submit(play())) is None


async def test_a_cancel_is_done_when_the_coroutine_has_ended(loop: EnvironmentLoop) -> None:
    here, go = asyncio.Event(), threading.Event()
    mine = asyncio.get_running_loop()

    async def play() -> None:
        try:
            mine.call_soon_threadsafe(here.set)
            await asyncio.Event().wait()
        finally:
            go.wait(5)

    outcome = loop.submit(play())
    await asyncio.wait_for(here.wait(), 5)
    loop.cancel(outcome)
    assert not outcome.done()
    go.set()
    assert isinstance(await ended(outcome), asyncio.CancelledError)
    loop.cancel(outcome)  # over already


async def test_a_cancel_before_the_first_step_ends_it_too(loop: EnvironmentLoop) -> None:
    blocking, go, began = threading.Event(), threading.Event(), False

    async def block() -> None:
        blocking.set()
        go.wait(5)

    async def play() -> None:
        nonlocal began
        began = True

    blocked = loop.submit(block())
    assert await asyncio.to_thread(blocking.wait, 5)
    outcome = loop.submit(play())
    loop.cancel(outcome)
    go.set()
    assert await ended(blocked) is None
    assert isinstance(await ended(outcome), asyncio.CancelledError)
    assert not began


async def test_what_one_turn_of_the_loop_submits_wakes_the_thread_once() -> None:
    turns: list[Callable[[], None]] = []
    loop = EnvironmentLoop(turns.append)
    loop.start()
    try:
        outcomes = [loop.submit(asyncio.sleep(0)) for _ in range(8)]
        loop.cancel(outcomes[3])
        (wake,) = turns
        wake()
        ends = [await ended(outcome) for outcome in outcomes]
        assert [type(end) for end in ends] == [
            asyncio.CancelledError if n == 3 else type(None) for n in range(8)
        ]
        loop.submit(asyncio.sleep(0))
        assert len(turns) == 2
    finally:
        loop.stop()


async def test_what_was_submitted_right_before_the_end_ends_too_and_nothing_is_taken_after_it() -> None:
    async def play() -> None:
        await asyncio.Event().wait()

    loop = EnvironmentLoop(asyncio.get_running_loop().call_soon)
    loop.start()
    outcome = loop.submit(play())
    loop.stop()
    assert isinstance(await ended(outcome), asyncio.CancelledError)
    await asyncio.to_thread(loop._thread.join, 5)
    late = play()
    with pytest.raises(RuntimeError, match="loop is closed"):
        loop.submit(late)
    late.close()
    assert len(loop) == 0


async def test_an_environment_that_stops_the_loop_stops_nobody(loop: EnvironmentLoop) -> None:
    go = threading.Event()

    async def other() -> None:
        while not go.is_set():  # noqa: ASYNC110  # one turn at a time
            await asyncio.sleep(0)

    async def play() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        go.set()

    outcomes = [loop.submit(other()), loop.submit(play())]
    assert [await ended(outcome) for outcome in outcomes] == [None, None]
    assert await ended(loop.submit(asyncio.sleep(0))) is None


FORKS = """
import asyncio, os, sys, threading
from concurrent.futures import wait
from env_worker.environment_loop import EnvironmentLoop

forked = threading.Event()

async def other():
    while not forked.is_set():
        await asyncio.sleep(0)
    if os.getpid() != parent:
        print("run twice", flush=True)

async def play():
    others = [loop.submit(other()) for _ in range(3)]
    await asyncio.sleep(0.01)
    child = os.fork()
    if child == 0:
        forked.set()
        CHILD
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    forked.set()

parent = os.getpid()
loop = EnvironmentLoop()
loop.start()
outcome = loop.submit(play())
wait([outcome], 20)
print(outcome.result(), len(loop))
loop.stop()
"""


@pytest.mark.parametrize(
    ("child", "code"),
    [
        ("sys.exit(0)", 1),
        ("return", 1),
        ("raise ValueError", 1),
        ("await asyncio.sleep(0)", 1),
        ("await asyncio.gather(asyncio.sleep(1), other())", 1),
        ("loop._loop.stop(); return", 1),
        ("os._exit(7)", 7),
        ("os.execvp('true', ['true'])", 0),
    ],
)
def test_a_child_that_an_environment_forked_ends_where_it_comes_back_to_the_loop(
    child: str, code: int
) -> None:
    """It may do what it likes until then; but it has a copy of the loop, with everybody's runs."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS.replace("CHILD", child)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    said, outcome, *rest = ran.stdout.splitlines()
    assert (said, outcome.split()[0], rest, ran.stderr) == (f"child {code}", "None", [], "")
