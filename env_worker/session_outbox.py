"""What is due to be written into a session's stream, and the messages that are made of it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from env_worker.session_frames import more_head

if TYPE_CHECKING:
    from collections.abc import Callable

TARGET_BYTES: Final = 256 * 1024
"""A message is no larger, unless one frame by itself is."""
MAX_FRAMES: Final = 1_024
"""Most frames of one message, if any are joined."""
MAX_WAITING_FRAMES: Final = 8_192
"""While more frames wait, no request is read."""
MAX_WAITING_BYTES: Final = 1024 * 1024
"""The same for the bytes of those that no run's credit bounds: answers, admissions, ends."""


class Sender(Protocol):
    """Sends data piece by piece: the next one is due after `written`, or never again."""

    @property
    def due(self) -> bytes | None:
        """What is to be written; None where nothing is any more."""

    def take(self, size: int) -> bytes:
        """What is due, of `size` bytes, goes into a message; the frame's head."""

    def written(self) -> None:
        """That message was written, or nothing was due any more."""


class Outbox:
    """Makes messages of what is due, in the order in which it became due. Knows no network and no clock.

    Whoever writes the stream calls `next_message`, writes that, calls `written` and so on; then what becomes
    due during a write leaves together. `written` comes before the next `next_message`.
    """

    def __init__(self) -> None:
        self.on_due: Callable[[], object] = lambda: None
        """Called when something has become due."""
        self.joins = False
        """Whether the client knows `more`. One that does not would miss what is in it: frames go alone."""
        self._due: deque[bytes | Sender] = deque()
        self._framed_bytes = 0
        self._under_way: list[Sender] = []

    @property
    def full(self) -> bool:
        """Whether as much waits as may: then nothing is to be done that makes frames."""
        return len(self._due) > MAX_WAITING_FRAMES or self._framed_bytes > MAX_WAITING_BYTES

    def put(self, frame: bytes) -> None:
        """A whole frame is due: a serialized SessionResponse without `more`."""
        self._due.append(frame)
        self._framed_bytes += len(frame)
        self.on_due()

    def put_sender(self, sender: Sender) -> None:
        """A sender has something due. It must not be put again before that was written."""
        self._due.append(sender)
        self.on_due()

    def next_message(self) -> bytes | None:
        """A serialized SessionResponse of what is due; None where nothing is."""
        due, parts = self._due, list[bytes]()
        size = count = 0
        most = MAX_FRAMES if self.joins else 1
        while due and count < most:
            item = due[0]
            if isinstance(item, bytes):
                data = item
            elif (waiting := item.due) is not None:
                data = waiting
            else:
                due.popleft()
                item.written()
                continue
            if count and size + len(data) > TARGET_BYTES:
                break
            due.popleft()
            if isinstance(item, bytes):
                self._framed_bytes -= len(data)
                head = b""
            else:
                head = item.take(len(data))
                self._under_way.append(item)
            if count:
                parts.append(more_head(len(head) + len(data)))
            parts += (head, data)
            size += len(data)
            count += 1
        return b"".join(parts) if count else None

    def written(self) -> None:
        """The last message was written. Tells the senders at once, with no await between."""
        under_way, self._under_way = self._under_way, []
        for sender in under_way:
            sender.written()
