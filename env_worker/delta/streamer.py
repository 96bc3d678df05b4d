"""The stream of one run: which bytes to write next, until the reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from envtrio.v1 import delta_pb2

from env_worker.delta.counts import count_sent
from env_worker.delta.diff import TraceCursor, diff
from env_worker.delta.frames import tag, varint
from env_worker.delta.limits import MAX_MESSAGE_BYTES, MessageTooLargeError, largest_field, largest_field_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envtrio.v1 import episode_pb2

    from env_worker.domain import Episode, Trace

DELTA_TARGET_BYTES: Final = 1024 * 1024
"""Messages are filled up to about this many bytes."""

_DELTAS: Final = tag(delta_pb2.DeltaStream.DELTAS_FIELD_NUMBER)
_FRAME_BYTES: Final = 6
"""At most what a DeltaStream adds to a delta: its tag and its length."""
_UNSENT: Final = TraceCursor()


class DeltaStreamer:
    """Turns what an episode announces into serialized DeltaStream messages. Lives on one loop.

    `next_message` gives the message to write now and gives the same one again until `commit` says that it was
    written; what changes meanwhile joins a later message. Deltas of one trace keep their order, and each
    change leaves once. The stream ends with `final_messages`, or with `reply` after everything else was
    committed.
    """

    def __init__(
        self, episode: Episode, *, target_bytes: int = DELTA_TARGET_BYTES, max_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        if not 0 < target_bytes <= max_bytes:
            raise ValueError(f"target_bytes is {target_bytes}, expected 1 to max_bytes, which is {max_bytes}")
        self._episode = episode
        self._target_bytes = target_bytes
        self._max_bytes = max_bytes
        self._waiting: dict[Trace, None] = {}  # traces that may hold something new, first touched first
        # Ahead of what was written by `_message`. They never go back: a write that fails ends the run.
        self._cursors: dict[Trace, TraceCursor] = {}
        self._message: bytes | None = None  # built, not committed

    def next_message(self) -> bytes | None:
        """The message to write next; None if nothing is new. MessageTooLargeError if one entry cannot fit."""
        if self._message is None:
            self._message = self._build()
        return self._message

    def commit(self) -> None:
        """The message of `next_message` was written: go on to the next. RuntimeError if there is none."""
        if self._message is None:
            raise RuntimeError(
                "commit without a message; call next_message first, and commit once it was written"
            )
        self._message = None

    def final_messages(self, head: episode_pb2.EpisodeHead) -> Iterator[bytes]:
        """What is still new, then the reply with `head`, joined to the last message where it fits.

        For an episode that changes no more. Write each message before asking for the next; whoever fails to
        write one must end the run, because a message counts as written once it was handed over here.
        """
        last: bytes | None = None
        while (message := self.next_message()) is not None:
            self.commit()
            if last is not None:
                yield last
            last = message
        reply = self._reply(head)
        yield from [reply] if last is None else join(last, reply, max_bytes=self._max_bytes)

    def reply(self, head: episode_pb2.EpisodeHead) -> bytes:
        """The stream's last message: `head`, and for each trace of the episode the counts of what was sent.

        RuntimeError if something was not sent yet, MessageTooLargeError if the head is beyond max_bytes.
        """
        if self.next_message() is not None:
            raise RuntimeError(
                "reply while changes wait to be sent; write and commit next_message until it is None"
            )
        return self._reply(head)

    def _reply(self, head: episode_pb2.EpisodeHead) -> bytes:
        # A trace without a cursor was never sent: a straggler opened it after the last message.
        counts = [
            count_sent(trace, self._cursors[trace])
            for trace in self._episode.traces
            if trace in self._cursors
        ]
        message = delta_pb2.DeltaStream(reply=delta_pb2.RunReply(head=head, traces=counts))
        data = message.SerializeToString()
        if len(data) > self._max_bytes:
            raise MessageTooLargeError(largest_field_of(message), len(data), self._max_bytes)
        return data

    def _build(self) -> bytes | None:
        for touched in self._episode.take_touched():
            self._waiting[touched] = None
        parts: list[bytes] = []
        size = 0
        while self._waiting:
            trace = next(iter(self._waiting))
            before = self._cursors.get(trace, _UNSENT)
            try:
                delta, cursor = diff(trace, before, self._target_bytes - size, self._max_bytes)
            except MessageTooLargeError:
                if parts:
                    break  # what is in front of it crosses first
                raise
            if delta is None:
                del self._waiting[trace]
                self._move(trace, cursor)  # past previews that came and went
                continue
            if parts and size + len(delta) > self._target_bytes:
                break  # one large entry: the next message begins with it
            if len(delta) > self._max_bytes - _FRAME_BYTES:
                raise self._too_large(trace, cursor, delta)
            parts += (_DELTAS, varint(len(delta)), delta)
            self._move(trace, cursor)
            size += len(delta) + _FRAME_BYTES
        return b"".join(parts) if parts else None

    def _move(self, trace: Trace, cursor: TraceCursor) -> None:
        if cursor.opened:
            self._cursors[trace] = cursor
        else:
            self._cursors.pop(trace, None)  # discarded: nothing of it will come again

    def _too_large(self, trace: Trace, cursor: TraceCursor, delta: bytes) -> MessageTooLargeError:
        # Beyond the target a delta holds one entry only: the one in front of the cursor, or else the header.
        journal = trace.journal
        if cursor.position and cursor.generation == journal.generation:
            field = largest_field(journal.entries[cursor.position - 1])
        else:
            field = largest_field_of(delta_pb2.TraceDelta.FromString(delta))
        size = len(delta) + _FRAME_BYTES
        return MessageTooLargeError(f"{field} of trace {trace.id!r}", size, self._max_bytes)


def join(first: bytes, second: bytes, *, max_bytes: int = MAX_MESSAGE_BYTES) -> list[bytes]:
    """Two consecutive serialized DeltaStream messages, laid end to end if that has at most `max_bytes`."""
    return [first + second] if len(first) + len(second) <= max_bytes else [first, second]
