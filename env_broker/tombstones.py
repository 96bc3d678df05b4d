"""What remains of routes that are over: an id and the answer to a cancel, for a while."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

AnswerT = TypeVar("AnswerT")


class Tombstones(Generic[AnswerT]):
    """request_id -> answer, each until its own end. The owner bounds the number.

    They go in the order in which they came, so that one with an early end may wait for an older one with a
    later end: how long the broker remembers grows with the windows that workers advertise.
    """

    def __init__(self) -> None:
        self._answers: dict[Hashable, AnswerT] = {}
        self._keys: deque[Hashable] = deque()
        self._ends: deque[float] = deque()

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, key: Hashable, answer: AnswerT, ends: float) -> None:
        """Remember `answer` until `ends`, in monotonic seconds."""
        self._answers[key] = answer
        self._keys.append(key)
        self._ends.append(ends)

    def amend(self, key: Hashable, answer: AnswerT) -> None:
        """Another answer for a run that is remembered here, until the same end."""
        self._answers[key] = answer

    def get(self, key: Hashable) -> AnswerT | None:
        """The answer for that run, or None where none is remembered."""
        return self._answers.get(key)

    def forget(self, now: float) -> None:
        """Drop what has ended."""
        while self._ends and self._ends[0] <= now:
            self._ends.popleft()
            del self._answers[self._keys.popleft()]
