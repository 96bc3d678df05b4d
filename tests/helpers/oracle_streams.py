"""The promises about what crosses, judged over the messages of a history."""

from __future__ import annotations

from typing import Final

from envtrio.v1 import delta_pb2
from google.protobuf.unknown_fields import UnknownFieldSet

from tests.helpers.guarantee import broke
from tests.helpers.history import Ended, History, Passed
from tests.helpers.stream_view import counts, merged, streams, submessages

ARRAY_FIELDS: Final = frozenset({"routed_experts", "sampling_mask", "top_logprobs", "routing_repairs"})


def ordered_without_gaps(history: History, hop: str = "client") -> None:
    """Each trace opens with seq 0 and a header, then grows by one seq at a time; a discard starts it over."""
    name = "OrderedWithoutGaps"
    for run, messages in streams(history, hop):
        following: dict[str, int] = {}
        for delta in (delta for message in messages for delta in message.deltas):
            trace, seq = delta.trace_id, delta.seq
            is_open = trace in following and not delta.discard
            expected = following[trace] if is_open else 0
            if delta.discard and trace not in following:
                broke(name, run, f"trace {trace!r} was discarded, but was not open")
            if seq != expected:
                broke(name, run, f"trace {trace!r} went on with seq {seq} where {expected} was due")
            if delta.discard and not delta.HasField("append"):
                if delta.HasField("pending"):
                    broke(name, run, f"trace {trace!r} was discarded and has a pending preview all the same")
                del following[trace]
                continue
            if delta.append.HasField("header") == is_open:
                broke(name, run, f"trace {trace!r} has {'a second' if is_open else 'no'} header, seq {seq}")
            if not is_open and delta.append.header.trace_id != trace:
                broke(name, run, f"trace {trace!r} has the header of {delta.append.header.trace_id!r}")
            following[trace] = seq + 1


def reply_once_and_last(history: History, hop: str = "client") -> None:
    """A stream that ended OK has one reply, in its last message; no stream has more, or goes on behind it."""
    name = "ReplyOnceAndLast"
    for run, messages in streams(history, hop):
        at = [number for number, message in enumerate(messages) if message.HasField("reply")]
        if len(at) > 1:
            broke(name, run, f"{len(at)} messages had a reply")
        if at and at[0] != len(messages) - 1:
            broke(name, run, f"{len(messages) - 1 - at[0]} messages came behind the reply")
    for run in history.runs():
        ended = statuses(history, run)
        passed = [record for record in history.of(run, Passed) if record.hop == hop]
        if any(record.code == "OK" for record in ended):
            last = delta_pb2.DeltaStream.FromString(passed[-1].data) if passed else delta_pb2.DeltaStream()
            if not last.HasField("reply"):
                broke(name, run, "the status was OK, but no reply came")
        if ended and passed and passed[-1].seq > ended[0].seq:
            broke(name, run, "a message came behind the status")


def each_thing_once(history: History, hop: str = "client") -> None:
    """What the reply counts is what crossed since each trace's last opening: nothing missing or doubled."""
    name = "EachThingOnce"
    for run, messages in streams(history, hop):
        if not messages or not messages[-1].HasField("reply"):
            continue
        traces, deltas = merged(messages)
        replied = [count.trace_id for count in messages[-1].reply.traces]
        if sorted(replied) != sorted(traces):
            broke(name, run, f"traces {sorted(traces)} crossed, the reply counts {sorted(replied)}")
        for count in messages[-1].reply.traces:
            trace = count.trace_id
            for field, found in {**counts(traces[trace]), "deltas": deltas[trace]}.items():
                if found != (told := getattr(count, field)):
                    broke(name, run, f"{found} {field} of trace {trace!r} crossed, the reply counts {told}")


def relayed_verbatim(history: History) -> None:
    """The bytes that reached the client are those that the worker sent, in order, however joined."""
    for run in history.runs():
        passed = history.of(run, Passed)
        sent = b"".join(record.data for record in passed if record.hop == "worker")
        received = b"".join(record.data for record in passed if record.hop == "client")
        ended_ok = any(record.code == "OK" for record in statuses(history, run))
        # What ends early may lose its tail, and nothing else.
        if sent != received and (ended_ok or not sent.startswith(received)):
            broke("RelayedVerbatim", run, f"{len(sent)} bytes were sent, {len(received)} others received")


def no_training_array_on_the_wire(history: History) -> None:
    """No message has a field for training arrays, nor one that its schema does not know."""
    for run in history.runs():
        for record in history.of(run, Passed):
            for path, message in submessages(delta_pb2.DeltaStream.FromString(record.data), "stream"):
                for field, _ in message.ListFields():
                    if field.name in ARRAY_FIELDS:
                        broke("NoTrainingArrayOnTheWire", run, f"{path}.{field.name} crossed")
                if len(unknown := UnknownFieldSet(message)):
                    number = unknown[0].field_number
                    broke("NoTrainingArrayOnTheWire", run, f"{path} has an unknown field {number}")


def statuses(history: History, run: str) -> list[Ended]:
    """The statuses of the run; a second run under its id was refused and is none of it."""
    return [end for end in history.of(run, Ended) if end.reason != "DUPLICATE_REQUEST_ID"]
