"""Does something to a coroutine at each of its suspension points in turn, for instance cancels it.

    for point in Suspensions(asyncio.Task.cancel):
        client = ...  # a fresh world for each point
        outcome = await outcome_of(point.drive(client.run({})))
        ...  # what must hold, whether it was disturbed (point.reached) or, the last time, not

The first pass disturbs the first suspension, the second pass the second one, until a pass comes to its end
before it reaches the one that it was to disturb. Where the number of suspensions differs from pass to pass,
because real I/O was quicker or slower, places could be missed so: further passes then disturb the first place
that never was, until a pass finds none. No list of the places where the code awaits is kept by hand, so an
await that is added later is tried as well.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from types import TracebackType

_T = TypeVar("_T")

_MOST_POINTS: Final = 1_000


class Moment(enum.Enum):
    """When, at a suspension."""

    ASLEEP = "asleep"
    """What is awaited is not there yet, as far as the coroutine knows."""
    AWAKENED = "awakened"
    """What is awaited is there, but the coroutine has not gone on: a cancel now loses the result."""


class Suspensions:
    """The suspension points of a coroutine that is made anew for each; iterate it.

    Args:
        act: gets the task that runs the coroutine; called on its event loop, synchronously.
        moment: when, at the suspension.
    """

    def __init__(self, act: Callable[[asyncio.Task[Any]], object], moment: Moment = Moment.ASLEEP) -> None:
        self._act = act
        self._moment = moment

    def __iter__(self) -> Iterator[Suspension]:
        tried: set[str] = set()
        by_number = True
        for index in range(_MOST_POINTS):
            point = Suspension(index, self._act, self._moment, tried, by_number)
            yield point
            if not point.driven:
                raise AssertionError(f"{point}: nothing was driven in this pass; give it a coroutine")
            if not point.reached and point.passed <= tried:
                return
            by_number &= point.reached
        raise AssertionError(f"the coroutine has over {_MOST_POINTS} suspensions: does it ever end?")


class Suspension:
    """The suspension point of one pass.

    Attributes:
        index: number of the pass, from 0.
        driven: whether a coroutine was given to it.
        reached: whether the coroutine came there, and `act` was called.
        where: the functions that waited, outermost first, each with its line, and the innermost one's file.
        passed: the places that were passed before, or without, the one that was disturbed.
    """

    def __init__(
        self,
        index: int,
        act: Callable[[asyncio.Task[Any]], object],
        moment: Moment,
        tried: set[str],
        by_number: bool,
    ) -> None:
        self.index: Final = index
        self.driven = False
        self.reached = False
        self.where = "(not reached)"
        self.passed: set[str] = set()
        self._act = act
        self._moment = moment
        self._tried = tried
        self._by_number = by_number
        self._count = 0
        self._is_over = False

    def __repr__(self) -> str:
        return f"suspension {self.index} ({self._moment.value}) at {self.where}"

    def drive(self, coroutine: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run it as a task of the running loop."""
        return asyncio.get_running_loop().create_task(self.around(coroutine))

    def around(self, coroutine: Coroutine[Any, Any, _T]) -> Coroutine[Any, Any, _T]:
        """The coroutine, for code that makes a task of it itself."""
        self.driven = True
        return _Watched(coroutine, self._suspended)

    def _suspended(self, coroutine: object, awaited: object) -> None:
        if self._is_over:
            return
        place = _chain(coroutine)
        self._count += 1
        if self._count - 1 != self.index if self._by_number else place in self._tried:
            self.passed.add(place)
            return
        self._is_over = True
        self.where = place
        self._tried.add(place)
        task = asyncio.current_task()
        assert task is not None, "only a task can run a watched coroutine"
        if self._moment is Moment.AWAKENED and isinstance(awaited, asyncio.Future):
            # The task has not added its own callback yet, so this one comes right before it.
            awaited.add_done_callback(lambda _: self._do(task))
        else:
            self._do(task)

    def _do(self, task: asyncio.Task[Any]) -> None:
        self.reached = True
        self._act(task)


async def outcome_of(task: asyncio.Future[_T], timeout: float = 20.0) -> _T | BaseException:
    """What the task returned or raised, CancelledError included.

    Raises:
        AssertionError: it had done neither after `timeout` seconds.
    """
    done, _ = await asyncio.wait([task], timeout=timeout)
    if not done:
        task.cancel()
        raise AssertionError(f"{task}: not done after {timeout} s")
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception() or task.result()


class _Watched(Coroutine[Any, Any, _T]):
    """A coroutine that reports each of its suspensions: itself, and what it handed to its task."""

    def __init__(self, inner: Coroutine[Any, Any, _T], suspended: Callable[[object, object], None]) -> None:
        self._inner = inner
        self._suspended = suspended

    def send(self, value: Any) -> Any:
        awaited = self._inner.send(value)
        self._suspended(self._inner, awaited)
        return awaited

    def throw(
        self,
        kind: Any,
        value: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> Any:
        error = kind if isinstance(kind, BaseException) else (value if value is not None else kind())
        awaited = self._inner.throw(error)  # type: ignore[arg-type]
        self._suspended(self._inner, awaited)
        return awaited

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, _T]:
        return self._inner.__await__()


def _chain(waiting: Any) -> str:
    """Where a chain of coroutines waits."""
    functions, place = [], "(no file)"
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is not None:
            functions.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            place = frame.f_code.co_filename
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    return f"{' > '.join(functions)} in {place}"
