"""The Session of the scripted server: opens, confirms and breaks streams as the test says."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from envtrio.v1.env_service_pb2 import (
    ConfirmAnswer,
    ConfirmAnswers,
    ConfirmOutcome,
    SessionOpened,
    SessionRequest,
    SessionResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.helpers.scripted_end import End

    Answering: TypeAlias = Callable[[str], ConfirmOutcome.ValueType | None]

CONFIRMED: Final = ConfirmOutcome.CONFIRM_OUTCOME_CONFIRMED
DISCARDED: Final = ConfirmOutcome.CONFIRM_OUTCOME_DISCARDED
WORKER_LOST: Final = ConfirmOutcome.CONFIRM_OUTCOME_WORKER_LOST
UNKNOWN: Final = ConfirmOutcome.CONFIRM_OUTCOME_UNKNOWN
_PATIENCE_SECONDS: Final = 20.0


@dataclass(frozen=True)
class SessionLine:
    """What one stream gets.

    Attributes:
        refuse: ends it in place of the first answer.
        opens: `opened` waits for it.
        answering: the outcome for a request_id; None: no answer to that one.
        held: the answers to each frame wait for it; no further frame is read meanwhile.
        breaks: ends it, in place of answers, when the first Confirm has come.
        apart: each answer is a frame of its own, all in one message.
        parts: with the goodbye the stream ends; else it stays open.
    """

    refuse: End | None = None
    opens: threading.Event | None = None
    answering: Answering = lambda _: CONFIRMED
    held: threading.Event | None = None
    breaks: End | None = None
    apart: bool = False
    parts: bool = True


class ScriptedSession:
    """Handles Session. A stream takes the next of `lines`, and confirms everything when there is none.

    Attributes:
        lines: what the next streams get.
        opens: session_id and epoch of each stream, in order.
        frames: the request_ids of each Confirm, in order.
        ends: "goodbye" or "lost" for each stream that was opened and is over.
        peers: whence the streams came.
    """

    def __init__(self, late_cancel_seconds: float) -> None:
        self.lines: deque[SessionLine] = deque()
        self.opens: list[tuple[str, int]] = []
        self.frames: list[list[str]] = []
        self.ends: list[str] = []
        self.peers: set[str] = set()
        self._late_cancel_seconds = late_cancel_seconds
        self._changed = threading.Condition()
        self._over = threading.Event()

    def wait_until(self, condition: Callable[[ScriptedSession], bool]) -> None:
        """Wait until what came meets the condition."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), _PATIENCE_SECONDS):
                raise AssertionError(f"opens {self.opens}, frames {self.frames}, ends {self.ends}")

    def confirmed_ids(self) -> list[str]:
        """The request_ids of all frames, in order."""
        with self._changed:
            return [request_id for frame in self.frames for request_id in frame]

    def let_go(self) -> None:
        """End what still waits."""
        self._over.set()

    def session(self, requests: Iterator[SessionRequest], context: Any) -> Iterator[SessionResponse]:
        """Handler of Session."""
        opening = next(requests).open
        with self._changed:
            line = self.lines.popleft() if self.lines else SessionLine()
            self.peers.add(context.peer())
        self._note(self.opens, (opening.session_id, opening.epoch))
        if line.refuse is not None:
            line.refuse.abort(context)
        if line.opens is not None:
            line.opens.wait(_PATIENCE_SECONDS)
        end = "lost"
        try:
            yield SessionResponse(opened=SessionOpened(late_cancel_seconds=self._late_cancel_seconds))
            for request in requests:
                assert not request.more, "it never said that it would see them"
                if request.HasField("goodbye"):
                    end = "goodbye"
                    if not line.parts:
                        self._over.wait(_PATIENCE_SECONDS)
                    return
                self._note(self.frames, list(request.confirm.request_ids))
                if line.breaks is not None:
                    line.breaks.abort(context)
                if line.held is not None:
                    line.held.wait(_PATIENCE_SECONDS)
                yield _answered(request, line)
        finally:
            self._note(self.ends, end)

    def _note(self, records: list[Any], record: object) -> None:
        with self._changed:
            records.append(record)
            self._changed.notify_all()


def _answered(request: SessionRequest, line: SessionLine) -> SessionResponse:
    outcomes = [(request_id, line.answering(request_id)) for request_id in request.confirm.request_ids]
    answers = [ConfirmAnswer(request_id=run, outcome=known) for run, known in outcomes if known is not None]
    parts = [[answer] for answer in answers] if line.apart else [answers]
    first, *more = (SessionResponse(confirm_answers=ConfirmAnswers(answers=part)) for part in parts)
    first.more.extend(more)
    return first
