"""Looking into streams and messages on behalf of the oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envtrio.v1 import delta_pb2, episode_pb2
from google.protobuf.message import Message

from tests.helpers.history import Passed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.helpers.history import History


def streams(history: History, hop: str) -> Iterator[tuple[str, list[delta_pb2.DeltaStream]]]:
    """Each run with its messages at `hop`, parsed."""
    for run in history.runs():
        passed = [record for record in history.of(run, Passed) if record.hop == hop]
        yield run, [delta_pb2.DeltaStream.FromString(record.data) for record in passed]


def merged(messages: Iterable[delta_pb2.DeltaStream]) -> tuple[dict[str, episode_pb2.Trace], dict[str, int]]:
    """What protobuf's own merge makes of a stream: the traces, and the deltas of each since its opening."""
    traces: dict[str, episode_pb2.Trace] = {}
    deltas: dict[str, int] = {}
    for delta in (delta for message in messages for delta in message.deltas):
        if delta.discard:
            traces.pop(delta.trace_id, None)
        if not delta.discard or delta.HasField("append"):
            traces.setdefault(delta.trace_id, episode_pb2.Trace()).MergeFrom(delta.append)
            deltas[delta.trace_id] = delta.seq + 1
    return traces, deltas


def counts(trace: episode_pb2.Trace) -> dict[str, int]:
    """What TraceCounts says of a trace, `deltas` left out."""
    return {
        "nodes": len(trace.nodes),
        "calls": len(trace.calls),
        "errors": len(trace.errors),
        "links": len(trace.links),
        "rewards": len(trace.rewards),
        "metrics": len(trace.metrics),
        "info_entries": len(trace.info_json),
        "tokens": sum(len(node.token_ids) // 4 for node in trace.nodes),
    }


def submessages(message: Message, path: str) -> Iterator[tuple[str, Message]]:
    """The message and every message that is set in it, however deep, each with its path."""
    yield path, message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for key, entry in value.items():
                    yield from submessages(entry, f"{path}.{field.name}[{key!r}]")
        elif isinstance(value, Message):
            yield from submessages(value, f"{path}.{field.name}")
        else:
            for index, entry in enumerate(value):
                yield from submessages(entry, f"{path}.{field.name}[{index}]")


def without_times(episode: episode_pb2.Episode) -> episode_pb2.Episode:
    """The episode without what differs from run to run: ids, times, the worker, and how it was asked for."""
    plain = episode_pb2.Episode()
    plain.CopyFrom(episode)
    for field in ("episode_id", "started_at", "duration", "worker_instance", "task_json"):
        plain.head.ClearField(field)
    for trace in plain.traces:
        trace.header.ClearField("started_at")
        trace.ClearField("finished_unix_nanos")
        for node in trace.nodes:
            node.ClearField("created_unix_nanos")
        for call in trace.calls:
            call.ClearField("started_at")
            call.ClearField("duration")
    return plain


def difference(found: Message, wanted: Message, path: str = "") -> str | None:
    """Where two messages of one type first differ, for people; None where they are equal."""
    if found == wanted:
        return None
    for field in wanted.DESCRIPTOR.fields:
        one, other = getattr(found, field.name), getattr(wanted, field.name)
        where = f"{path}.{field.name}" if path else field.name
        if field.has_presence and found.HasField(field.name) != wanted.HasField(field.name):
            words = ("present", "absent") if found.HasField(field.name) else ("absent", "present")
            return f"{where} is {words[0]}, in its source it is {words[1]}"
        if one == other:
            continue
        if isinstance(one, Message):
            return difference(one, other, where)
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            if len(one) != len(other):
                return f"{where} has {len(one)} entries, its source {len(other)}"
            for index, (left, right) in enumerate(zip(one, other, strict=True)):
                if left != right:
                    return difference(left, right, f"{where}[{index}]")
        return f"{where} is {str(one)[:200]}, its source is {str(other)[:200]}"
    return f"{path or 'the message'} has unknown fields that its source has not, or the reverse"
