"""The thread and event loop in which environments run, apart from the loop that serves the network."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import weakref
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from types import FrameType

logger = logging.getLogger(__name__)

Outcome: TypeAlias = "Future[BaseException | None]"
"""Done when the coroutine has really ended: with what it raised, of whatever kind, or with None."""

_SHOWN_FRAMES: Final = 3
"""So many frames from either end of a stack say where it is."""


class Whereabouts(NamedTuple):
    """What the environments' thread does at one moment."""

    run: str
    """The request_id of the run whose task is being stepped, itself or one that it started; empty if none."""
    stack: str
    """Where the thread is, innermost first: what belongs to asyncio is left out. Empty if it waits."""


class EnvironmentLoop:
    """Runs coroutines on its own loop. An environment that blocks it stops other environments and nothing
    else.

    All methods may be called from any thread; none waits for the environments' loop.

    Args:
        soon: `call_soon` of the one loop whose thread calls `submit` and `cancel`: then what one turn of that
            loop submits wakes the environments' thread once. Without it each call may wake it.
        at_end: awaited on the environments' loop before it is closed, when no environment runs any more.
    """

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], object] | None = None,
        *,
        at_end: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._soon: Final = soon
        self._at_end: Final = at_end
        self._loop: Final = asyncio.new_event_loop()
        self._loop.set_task_factory(self._new_task)
        self._thread: Final = threading.Thread(target=self._run, name="environments", daemon=True)
        self._tasks: Final[dict[Outcome, asyncio.Task[BaseException | None]]] = {}
        self._runs: Final[dict[Outcome, str]] = {}
        self._runs_of_tasks: Final[weakref.WeakKeyDictionary[asyncio.Task[Any], str]] = (
            weakref.WeakKeyDictionary()
        )
        self._ended = False
        self._inbox: Final[deque[Callable[[], None]]] = deque()
        self._armed = False
        self._pid: Final = os.getpid()
        _loops.add(self)

    def __len__(self) -> int:
        """How many coroutines have not ended."""
        return len(self._runs)

    def start(self) -> None:
        """Start the thread. Once."""
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, None], run: str = "") -> Outcome:
        """Run `coroutine` for the run of that request_id. The future never raises, and cancelling it has no
        effect: use `cancel`. RuntimeError once the loop is closed."""
        self._check_open()
        outcome: Outcome = Future()
        outcome.set_running_or_notify_cancel()
        self._runs[outcome] = run

        def end(task: asyncio.Task[BaseException | None]) -> None:
            del self._tasks[outcome], self._runs[outcome]
            coroutine.close()  # it was never begun, if the task was cancelled before its first step
            outcome.set_result(asyncio.CancelledError() if task.cancelled() else task.result())

        def start() -> None:
            task = self._loop.create_task(_raised_by(coroutine, self._pid))
            task.add_done_callback(end)
            self._tasks[outcome] = task
            self._runs_of_tasks[task] = run

        self._have_called(start)
        return outcome

    def cancel(self, outcome: Outcome) -> None:
        """Cancel what was submitted for `outcome`, where it still runs."""

        def cancel() -> None:
            if (task := self._tasks.get(outcome)) is not None:
                task.cancel()

        self._have_called(cancel)

    def ping(self, answer: Callable[[], None]) -> None:
        """Have `answer` called in the environments' thread, as soon as no environment blocks it. Never once
        the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(answer)

    def whereabouts(self) -> Whereabouts:
        """What runs in the environments' thread now."""
        task = asyncio.current_task(self._loop)
        run = "" if task is None else self._runs_of_tasks.get(task, "")
        frame = sys._current_frames().get(self._thread.ident or 0)
        return Whereabouts(run, _described(list(_frames(frame))))

    def stop(self) -> None:
        """Cancel everything and end the thread when that is done. Does not wait: an environment may block."""

        def stop() -> None:
            self._empty_inbox()
            for task in self._tasks.values():
                task.cancel()
            self._loop.create_task(self._end())

        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(stop)

    def _have_called(self, callback: Callable[[], None]) -> None:
        """Have `callback` called in the environments' thread, after those that came before it. To wake that
        thread, which takes the interpreter from this one, costs more than most of what is called: what comes
        until it wakes is called then too. RuntimeError once the loop is closed."""
        self._check_open()
        self._inbox.append(callback)
        if self._armed:
            return  # `_empty_inbox` disarms before it looks: it finds this one
        self._armed = True
        if self._soon is None:
            self._wake()
        else:
            self._soon(self._wake)

    def _check_open(self) -> None:
        if self._loop.is_closed():
            raise RuntimeError("the environments' loop is closed; nothing can run there any more")

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed since: nobody waits for it any more
            self._loop.call_soon_threadsafe(self._empty_inbox)

    def _empty_inbox(self) -> None:
        self._armed = False
        while self._inbox:
            self._inbox.popleft()()

    def _new_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        """Tasks that an environment starts belong to its run."""
        task = asyncio.Task(coroutine, loop=loop, **options)
        parent = asyncio.current_task(loop)
        if parent is not None and (run := self._runs_of_tasks.get(parent)) is not None:
            self._runs_of_tasks[task] = run
        return task

    def _end_here_in_forked_child(self) -> None:
        """A child that an environment forked may do what it likes until it comes back to the loop, of which
        it has a copy: the very next thing there ends it, or it would go on with everybody's runs."""
        if threading.get_ident() == self._thread.ident:
            ready: Any = self._loop
            ready._ready.appendleft(asyncio.Handle(os._exit, (1,), self._loop))

    async def _end(self) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        self._ended = True
        self._loop.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._ended:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                _end_forked_child(self._pid)
                logger.error(
                    "a task that an environment started raised %r; the other environments go on", error
                )
            else:
                if not self._ended:
                    logger.error("an environment stopped the loop of all environments; they go on")
        if self._at_end is not None:
            try:
                self._loop.run_until_complete(self._at_end())
            except Exception:
                logger.exception("what the environments shared could not be closed")
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


async def _raised_by(coroutine: Coroutine[Any, Any, None], pid: int) -> BaseException | None:
    # Returned, not raised: SystemExit would end the loop, and it is the environment's failure, not the
    # process's end.
    try:
        await coroutine
    except BaseException as error:
        _end_forked_child(pid)
        return error
    _end_forked_child(pid)
    return None


def _end_forked_child(pid: int) -> None:
    """Here comes a child too that an environment forked and that means to end. It has a copy of our loop, and
    would go on with it and take wake-ups from the parent: end it now, and run nothing of ours in it."""
    if os.getpid() != pid:
        os._exit(1)


_loops: Final[weakref.WeakSet[EnvironmentLoop]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for loop in _loops:
        loop._end_here_in_forked_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _frames(frame: FrameType | None) -> Iterator[str]:
    """The frames of a thread, innermost first, without those of its loop."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", "?"))
        if module.partition(".")[0] not in ("asyncio", "selectors", "threading") and module != __name__:
            yield f"{module}.{frame.f_code.co_qualname}:{frame.f_lineno}"
        frame = frame.f_back


def _described(frames: list[str]) -> str:
    if len(frames) > 2 * _SHOWN_FRAMES:
        frames = [*frames[:_SHOWN_FRAMES], "...", *frames[-_SHOWN_FRAMES:]]
    return " < ".join(frames)
