"""What one stream of a client's session has yet to be told, made into messages.

Synchronous: whoever writes the stream asks for a message, writes it, and says that it was written. What
becomes due meanwhile goes with the next one, so that messages get as large as the stream is busy. Messages
are framed by hand: a run's bytes are copied once, where protobuf's own objects would copy them twice.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from envtrio.v1 import env_service_pb2 as pb

from env_broker.client_hop import HopBrokenError
from env_broker.framing import tag, varint

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGE_BYTES: Final = 256 * 1024
"""A message ends before the frame with which it would have more; one that is larger goes alone."""
MAX_FRAMES: Final = 1_024
"""Most frames in one message."""
MAX_ANSWERS: Final = 1_024
"""Most answers in one frame."""

_MORE: Final = tag(pb.SessionResponse.MORE_FIELD_NUMBER)
_RUN_DATA: Final = tag(pb.SessionResponse.RUN_DATA_FIELD_NUMBER)
_NUMBER: Final = bytes([pb.RunData.RUN_NUMBER_FIELD_NUMBER << 3])
_DATA: Final = tag(pb.RunData.DATA_FIELD_NUMBER)


class Written(Protocol):
    """Waits until its message was written: an asyncio.Future is one."""

    def set_result(self, result: None, /) -> None:
        """It was."""

    def done(self) -> bool:
        """Whether nobody waits any more."""


class Outlet:
    """One run's place in the stream, made by `Outbox.outlet`. What it is told after the stream's end, or
    after its own, goes nowhere.

    Its order is the caller's: `admit`, then `send`, each when the one before was written, then `end`.
    """

    __slots__ = ("_credit", "_data", "_ended", "_head", "_outbox", "_written", "number")

    def __init__(self, outbox: Outbox, number: int, credit: int) -> None:
        self.number: Final = number
        self._outbox: Final = outbox
        self._head: Final = _NUMBER + varint(number) + _DATA
        self._credit = credit
        self._data: bytes | None = None
        self._written: Written | None = None
        self._ended = False

    def admit(self) -> None:
        """Tell that the run was admitted. HopBrokenError if the stream is over."""
        self._outbox.check()
        if not self._ended:
            self._outbox.put(pb.SessionResponse(run_admitted=pb.RunAdmitted(run_number=self.number)))

    def send(self, data: bytes, written: Written) -> None:
        """Send one message of the run, when the client has given credit for it. `written` is done then.

        Raises:
            HopBrokenError: the stream is over.
            RuntimeError: the message before is still on its way, or the run was ended.
        """
        self._outbox.check()
        if self._written is not None or self._ended:
            raise RuntimeError(f"run {self.number} sends while a message is on its way, or after its end")
        self._data, self._written = data, written
        if self._credit > 0:
            self._due(data)

    def allow(self, credit: int) -> None:
        """The client takes so many bytes more."""
        stalled = self._credit <= 0
        self._credit += credit
        if stalled and self._credit > 0 and self._data is not None:
            self._due(self._data)

    def close(self) -> None:
        """No message of the run leaves any more, but one that is being written. `end` is still to be told."""
        self._ended = True
        self._data = self._written = None

    def end(self, code: int = 0, message: str = "", status_details: bytes = b"") -> None:
        """Tell how the run ended, as EndRun has it."""
        self.close()
        self._outbox.gone(self)
        frame = pb.EndRun(run_number=self.number, code=code, message=message, status_details=status_details)
        self._outbox.put(pb.SessionResponse(end_run=frame))

    def take(self) -> tuple[bytes, bytes] | None:
        """For the outbox: the message that is due, behind its frame's beginning; None if it was dropped."""
        data, self._data = self._data, None
        if data is None:
            return None
        head = self._head + varint(len(data))
        return _RUN_DATA + varint(len(head) + len(data)) + head, data

    @property
    def credited(self) -> bool:
        """Whether a message may be sent now."""
        return self._credit > 0

    @property
    def waits(self) -> bool:
        """Whether a message was sent that is not being written yet."""
        return self._data is not None

    @property
    def size(self) -> int:
        """For the outbox: bytes of the message that is due."""
        return len(self._data or b"")

    def written(self) -> None:
        """For the outbox: what `take` gave was written."""
        written, self._written = self._written, None
        if written is not None and not written.done():
            written.set_result(None)

    def _due(self, data: bytes) -> None:
        self._credit -= len(data)
        self._outbox.due(self)


class Outbox:
    """Frames in the order in which they became due, and the message that is being written.

    Only where runs were opened has a message `more`: answers share their one frame. A client that never
    opens a run may be older than `more`, and would not see what is in it.

    Args:
        news: called when something is due, and when a run has ended.
    """

    def __init__(self, news: Callable[[], object]) -> None:
        self._news: Final = news
        self._queue: deque[bytes | Outlet] = deque()
        self._answers: list[pb.ConfirmAnswer] = []
        self._writing: list[Outlet] = []
        self._outlets: set[Outlet] = set()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Frames that wait to be written, confirmations' answers aside."""
        return len(self._queue)

    @property
    def answers(self) -> int:
        """Answers that wait to be written."""
        return len(self._answers)

    @property
    def runs(self) -> int:
        """Runs that have not ended."""
        return len(self._outlets)

    def outlet(self, number: int, credit: int) -> Outlet:
        """A place for a run, whose client takes `credit` bytes at first."""
        outlet = Outlet(self, number, credit)
        self._outlets.add(outlet)
        return outlet

    def answer(self, answer: pb.ConfirmAnswer) -> None:
        """Answer a confirmation. Answers go ahead of what else is due, many in one frame."""
        if not self._closed:
            self._answers.append(answer)
            self._news()

    def message(self) -> bytes | None:
        """The next message, which the caller writes, and then calls `written`; None if nothing is due."""
        pieces: list[bytes] = []
        frames = size = 0
        if self._answers:
            told, self._answers = self._answers[:MAX_ANSWERS], self._answers[MAX_ANSWERS:]
            answered = pb.SessionResponse(confirm_answers=pb.ConfirmAnswers(answers=told))
            self._queue.appendleft(answered.SerializeToString())
        queue = self._queue
        while queue and frames < MAX_FRAMES:
            item = queue[0]
            if frames and size + (len(item) if isinstance(item, bytes) else item.size) > MESSAGE_BYTES:
                break
            queue.popleft()
            if isinstance(item, bytes):
                frame: tuple[bytes, ...] = (item,)
            elif (taken := item.take()) is not None:
                frame = taken
                self._writing.append(item)
            else:
                continue
            length = sum(map(len, frame))
            if frames:
                pieces.append(_MORE + varint(length))
            pieces += frame
            frames += 1
            size += length
        return b"".join(pieces) if frames else None

    def written(self) -> None:
        """The last message was written: those who wait for that go on."""
        writing, self._writing = self._writing, []
        for outlet in writing:
            outlet.written()

    def close(self) -> None:
        """The stream is over: nothing more is told."""
        self._closed = True
        self._queue.clear()
        self._answers, self._writing = [], []
        for outlet in tuple(self._outlets):
            outlet.close()
        self._outlets.clear()

    def check(self) -> None:
        """For outlets: HopBrokenError if the stream is over."""
        if self._closed:
            raise HopBrokenError("the session's stream is over")

    def put(self, frame: pb.SessionResponse) -> None:
        """For outlets: a frame that is due."""
        if not self._closed:
            self._queue.append(frame.SerializeToString())
            self._news()

    def due(self, outlet: Outlet) -> None:
        """For outlets: a message that is due."""
        self._queue.append(outlet)
        self._news()

    def gone(self, outlet: Outlet) -> None:
        """For outlets: the run has ended."""
        self._outlets.discard(outlet)
