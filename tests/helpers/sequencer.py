"""Forces one interleaving of tasks and threads, and fails loudly where it cannot happen."""

from __future__ import annotations

import asyncio
import concurrent.futures
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class SequenceError(AssertionError):
    """The declared order did not, or cannot, come about."""


class Sequencer:
    """Steps in a declared order, each passed exactly once by whichever task or thread names it.

        seq = Sequencer("keep begins", "cancel", "keep ends")
        await seq("cancel")             # in a task: waits for its turn, then lets the next step go
        seq.block("keep begins")        # the same in a thread
        async with seq.turn("cancel"):  # the next step goes when the block is left

    Who waits longer than `timeout` seconds gets a SequenceError naming the step that did not come.
    """

    def __init__(self, *steps: str, timeout: float = 5.0) -> None:
        if len(set(steps)) != len(steps) or not steps:
            raise SequenceError(f"the steps {steps} are none, or not unique; name each once")
        self._steps = steps
        self._timeout = timeout
        self._turns: list[concurrent.futures.Future[None]] = [concurrent.futures.Future() for _ in steps]
        self._entered: set[int] = set()
        self._passed = 0
        self._turns[0].set_result(None)

    async def __call__(self, step: str) -> None:
        """Wait until all steps before `step` were passed; then pass it."""
        async with self.turn(step):
            pass

    @asynccontextmanager
    async def turn(self, step: str) -> AsyncIterator[None]:
        """Wait for the turn of `step`; it is passed when the block is left, also by an exception."""
        number = self._enter(step)
        # A cancelled waiter must not cancel the turn itself.
        turn = asyncio.shield(asyncio.wrap_future(self._turns[number]))
        try:
            async with asyncio.timeout(self._timeout):
                await turn
        except TimeoutError:
            raise self._stuck(step) from None
        try:
            yield
        finally:
            self._pass(number)

    def block(self, step: str) -> None:
        """As calling it, in a thread that has no event loop."""
        number = self._enter(step)
        try:
            self._turns[number].result(self._timeout)
        except concurrent.futures.TimeoutError:
            raise self._stuck(step) from None
        self._pass(number)

    def check_done(self) -> None:
        """SequenceError unless every step was passed."""
        if self._passed != len(self._steps):
            passed, missing = self._steps[: self._passed], self._steps[self._passed :]
            raise SequenceError(f"passed {passed}, but {missing} never came")

    def _enter(self, step: str) -> int:
        if step not in self._steps:
            raise SequenceError(f"step {step!r} is not one of {self._steps}; declare it")
        number = self._steps.index(step)
        if number in self._entered:
            raise SequenceError(f"step {step!r} came twice; declare a step for each time")
        self._entered.add(number)
        return number

    def _pass(self, number: int) -> None:
        self._passed = number + 1
        if self._passed < len(self._steps):
            self._turns[self._passed].set_result(None)

    def _stuck(self, step: str) -> SequenceError:
        return SequenceError(
            f"step {step!r} waited {self._timeout} s for {self._steps[self._passed]!r}, which did not come; "
            f"passed so far: {self._steps[: self._passed]}"
        )
