"""What has changed in a trace since the last delta: pure, from one cursor to the next.

A cursor holds counts, never copies, and nothing is scanned twice: the cost is that of the new entries. Each
entry is encoded once; laying the bytes end to end is building the delta, as merging them is assembling the
trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from envtrio.v1 import delta_pb2

from env_worker import wire
from env_worker.delta.frames import tag, varint
from env_worker.delta.limits import MAX_MESSAGE_BYTES, MessageTooLargeError, check_bound
from env_worker.delta.records import opening, record
from env_worker.domain import PendingSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from env_worker.domain import Pending, Trace

_ENVELOPE_BYTES: Final = 40
"""At most what a delta in a DeltaStream holds beside its trace_id, append and pending: tags, lengths, seq."""

_APPEND: Final = tag(delta_pb2.TraceDelta.APPEND_FIELD_NUMBER)
_PENDING: Final = tag(delta_pb2.TraceDelta.PENDING_FIELD_NUMBER)


class TraceCursor(NamedTuple):
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
) -> tuple[bytes | None, TraceCursor]:
    """Everything new in `trace` since `cursor`, as a serialized TraceDelta, or None; and the cursor that goes
    on from there.

    Stops in front of the journal entry that would bring the delta over `budget_bytes`, so that calling it
    again with the returned cursor goes on with the rest; an entry that is larger by itself goes alone. Safe
    while another thread writes the trace. MessageTooLargeError if an entry cannot fit into `max_bytes`.
    """
    if trace.discarded:
        if not cursor.opened:
            return None, cursor
        return _delta(trace, 0, discard=True), TraceCursor()
    journal = trace.journal  # once: a rewrite puts another one in its place
    generation, position, seq, opened, previewed = cursor
    records: list[bytes] = []  # laid end to end they are the delta's `append`
    append_bytes = 0
    discard = False
    if not opened or generation != journal.generation:
        generation, position, seq, discard, previewed = journal.generation, 0, 0, opened, False
        records.append(opening(trace))
        append_bytes = len(records[0])

    room = budget_bytes - _ENVELOPE_BYTES - len(trace.id.encode())
    entries = journal.entries
    end = len(entries)
    drops = previewed  # whether there is something that an empty preview would drop
    preview: bytes | None = None  # the latest of this delta: one that is replaced within it never leaves
    while position < end:
        change = entries[position]
        filled = append_bytes > 0 or preview is not None
        try:
            check_bound(change, trace.id, max_bytes)
        except MessageTooLargeError:
            if filled:
                break  # what is in front of it crosses all the same
            raise
        # A delta that holds nothing yet takes any entry, or the stream would stand still.
        if isinstance(change, PendingSet):
            new_preview = _preview(change.pending, drops)
            if filled and append_bytes + len(new_preview or b"") > room:
                break
            preview, previewed = new_preview, change.pending is not None
        else:
            part = record(change)
            if filled and append_bytes + len(part) + len(preview or b"") > room:
                break
            records.append(part)
            append_bytes += len(part)
        position += 1

    if not records and preview is None:
        return None, TraceCursor(generation, position, seq, True, previewed)
    delta = _delta(trace, seq, discard=discard, records=records, preview=preview)
    return delta, TraceCursor(generation, position, seq + 1, True, previewed)


def _preview(pending: Pending | None, drops: bool) -> bytes | None:
    # Dropping what was never sent says nothing.
    if pending is None and not drops:
        return None
    return wire.pending(pending).SerializeToString()


def _delta(
    trace: Trace, seq: int, *, discard: bool, records: Sequence[bytes] = (), preview: bytes | None = None
) -> bytes:
    parts = [delta_pb2.TraceDelta(trace_id=trace.id, seq=seq, discard=discard).SerializeToString()]
    if records:
        parts += (_APPEND, varint(sum(map(len, records))), *records)
    if preview is not None:  # an empty one says that the preview is dropped
        parts += (_PENDING, varint(len(preview)), preview)
    return b"".join(parts)
