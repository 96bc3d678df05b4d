"""What has changed in a trace since the last delta: pure, from one cursor to the next.

A cursor holds counts, never copies, and nothing is scanned twice: the cost is that of the new entries. Each
entry becomes a partial Trace, serialized once; merging them in order is building the delta, as it is
assembling the trace.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from envtrio.v1 import delta_pb2

from env_worker import wire
from env_worker.delta.limits import MAX_MESSAGE_BYTES, MessageTooLargeError, check_bound
from env_worker.domain import Pending, PendingSet, Trace

_ENVELOPE_BYTES = 40
"""At most what a delta in a DeltaStream holds beside its trace_id, append and pending: tags, lengths, seq."""


@dataclass(frozen=True, slots=True)
class TraceCursor:
    """Up to where a trace was sent.

    `generation` and `position` are a place in its journal, `seq` numbers the next delta, `opened` says
    whether the receiver holds the trace, `previewed` whether it holds a preview.
    """

    generation: int = 0
    position: int = 0
    seq: int = 0
    opened: bool = False
    previewed: bool = False


def diff(
    trace: Trace, cursor: TraceCursor, budget_bytes: int, max_bytes: int = MAX_MESSAGE_BYTES
) -> tuple[delta_pb2.TraceDelta | None, TraceCursor]:
    """Everything new in `trace` since `cursor`, or None; and the cursor that goes on from there.

    Stops in front of the journal entry that would bring the delta over `budget_bytes`, so that calling it
    again with the returned cursor goes on with the rest; an entry that is larger by itself goes alone. Safe
    while another thread writes the trace. MessageTooLargeError if an entry cannot fit into `max_bytes`.
    """
    if trace.discarded:
        if not cursor.opened:
            return None, cursor
        return delta_pb2.TraceDelta(trace_id=trace.id, discard=True), TraceCursor()
    journal = trace.journal  # once: a rewrite puts another one in its place
    delta = delta_pb2.TraceDelta(trace_id=trace.id)
    append_bytes = 0
    if not cursor.opened or cursor.generation != journal.generation:
        delta.discard = cursor.opened
        delta.append.header.CopyFrom(wire.header(trace))
        append_bytes = delta.append.ByteSize()
        cursor = TraceCursor(generation=journal.generation, opened=True)
    delta.seq = cursor.seq

    room = budget_bytes - _ENVELOPE_BYTES - len(trace.id.encode())
    entries = journal.entries
    position, end = cursor.position, len(entries)
    preview: bytes | None = None  # the latest of this delta: one that is replaced within it never leaves
    previewed = cursor.previewed
    while position < end:
        change = entries[position]
        try:
            check_bound(change, trace.id, max_bytes)
        except MessageTooLargeError:
            if append_bytes or preview is not None:
                break  # what is in front of it crosses all the same
            raise
        if isinstance(change, PendingSet):
            new_preview = _preview(change.pending, cursor)
            size = append_bytes + len(new_preview or b"")
            if _is_full(size, room, append_bytes, preview):
                break
            preview, previewed = new_preview, change.pending is not None
        else:
            part = wire.partial_trace(change).SerializeToString()
            size = append_bytes + len(part) + len(preview or b"")
            if _is_full(size, room, append_bytes, preview):
                break
            delta.append.MergeFromString(part)
            append_bytes += len(part)
        position += 1

    cursor = replace(cursor, position=position, previewed=previewed)
    if preview is not None:
        delta.pending.SetInParent()  # an empty one says that the preview is dropped
        delta.pending.MergeFromString(preview)
    elif not append_bytes:
        return None, cursor
    return delta, replace(cursor, seq=cursor.seq + 1)


def _preview(pending: Pending | None, cursor: TraceCursor) -> bytes | None:
    # Dropping what was never sent says nothing.
    if pending is None and not cursor.previewed:
        return None
    return wire.pending(pending).SerializeToString()


def _is_full(size: int, room: int, append_bytes: int, preview: bytes | None) -> bool:
    # A delta that holds nothing yet takes any entry, or the stream would stand still.
    return size > room and (append_bytes > 0 or preview is not None)
