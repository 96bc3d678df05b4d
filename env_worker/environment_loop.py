"""The thread and event loop in which environments run, apart from the loop that serves the network."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

logger = logging.getLogger(__name__)

COALESCE_SECONDS: Final = 0.002
"""Changes that come so close together are told at once."""

Outcome: TypeAlias = "Future[BaseException | None]"
"""Done when the coroutine has really ended: with what it raised, of whatever kind, or with None."""


class EnvironmentLoop:
    """Runs coroutines on its own loop. An environment that blocks it stops other environments and nothing
    else.

    All methods may be called from any thread; none waits for the environments' loop.
    """

    def __init__(self) -> None:
        self._loop: Final = asyncio.new_event_loop()
        self._thread: Final = threading.Thread(target=self._run, name="environments", daemon=True)
        self._tasks: Final[dict[Outcome, asyncio.Task[BaseException | None]]] = {}
        self._ended = False
        self._pid: Final = os.getpid()

    def start(self) -> None:
        """Start the thread. Once."""
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, None]) -> Outcome:
        """Run `coroutine`. The future never raises, and cancelling it has no effect: use `cancel`."""
        outcome: Outcome = Future()
        outcome.set_running_or_notify_cancel()

        def end(task: asyncio.Task[BaseException | None]) -> None:
            del self._tasks[outcome]
            coroutine.close()  # it was never begun, if the task was cancelled before its first step
            outcome.set_result(asyncio.CancelledError() if task.cancelled() else task.result())

        def start() -> None:
            task = self._loop.create_task(_raised_by(coroutine, self._pid))
            task.add_done_callback(end)
            self._tasks[outcome] = task

        self._loop.call_soon_threadsafe(start)
        return outcome

    def cancel(self, outcome: Outcome) -> None:
        """Cancel what was submitted for `outcome`, where it still runs."""

        def cancel() -> None:
            if (task := self._tasks.get(outcome)) is not None:
                task.cancel()

        self._loop.call_soon_threadsafe(cancel)

    def stop(self) -> None:
        """Cancel everything and end the thread when that is done. Does not wait: an environment may block."""

        def stop() -> None:
            for task in self._tasks.values():
                task.cancel()
            self._loop.create_task(self._end())

        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(stop)

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


class WakeUp:
    """Tells one event loop from any thread that something has changed: many calls, one wake-up.

    It comes COALESCE_SECONDS after the first of them, because an environment writes a turn in several steps:
    a message costs more than what it carries.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop: Final = loop
        self._wake: Final = wake
        self._armed = False

    def __call__(self) -> None:
        # Two threads that race here arm twice, which costs a wake-up too many. One too few cannot happen:
        # `_fire` disarms before it wakes, so a change that finds it armed is before that wake-up's look.
        if not self._armed:
            self._armed = True
            try:
                self._loop.call_soon_threadsafe(self._loop.call_later, COALESCE_SECONDS, self._fire)
            except RuntimeError:  # the loop is closed: nobody is left to be woken
                logger.debug("a change after the end of the loop")

    def _fire(self) -> None:
        self._armed = False
        self._wake()
