"""Joined bytes parse to what protobuf would have built of the same journal, merge by merge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envtrio.v1 import delta_pb2, episode_pb2
from hypothesis import given, settings

from env_worker import wire
from env_worker.delta.streamer import DeltaStreamer
from env_worker.domain import (
    CallAdded,
    ErrorAdded,
    Finished,
    InfoSet,
    LinkAdded,
    MetricSet,
    NodeAdded,
    OkSet,
    PendingSet,
    RewardSet,
    StopSet,
    ToolsSet,
)
from tests.helpers.operations import Flush
from tests.helpers.strategies import new_episode, programs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from env_worker.domain import Change, Trace
    from tests.helpers.operations import Operation


@settings(max_examples=100)
@given(program=programs)
def test_a_message_parses_to_what_protobuf_builds(program: Sequence[Operation]) -> None:
    episode = new_episode()
    for operation in program:
        if not isinstance(operation, Flush):
            operation.apply(episode)
    data = DeltaStreamer(episode).next_message()
    expected = delta_pb2.DeltaStream(deltas=map(_delta, episode.traces))
    assert delta_pb2.DeltaStream.FromString(data or b"") == expected


def _delta(trace: Trace) -> delta_pb2.TraceDelta:
    delta = delta_pb2.TraceDelta(trace_id=trace.id)
    delta.append.header.CopyFrom(wire.header(trace))
    for change in trace.journal.entries:
        if not isinstance(change, PendingSet):
            delta.append.MergeFrom(_part(change))
    if trace.pending is not None:
        delta.pending.CopyFrom(wire.pending(trace.pending))
    return delta


def _part(change: Change) -> episode_pb2.Trace:
    part = episode_pb2.Trace()
    match change:
        case NodeAdded(_, node):
            part.nodes.append(wire.node(node))
        case CallAdded(_, call):
            part.calls.append(wire.call(call))
        case ErrorAdded(_, error):
            part.errors.append(wire.error(error))
        case LinkAdded(_, link):
            part.links.append(wire.link(link))
        case RewardSet(name, reward):
            part.rewards[name].CopyFrom(wire.reward(reward))
        case MetricSet(name, value):
            part.metrics[name] = value
        case InfoSet(key, json_text):
            part.info_json[key] = json_text
        case OkSet(ok):
            part.ok = ok
        case StopSet(condition):
            part.stop_condition = condition
        case ToolsSet(json_text):
            part.tools_json = json_text
        case Finished(unix_ns):
            part.finished_unix_nanos = unix_ns
    return part
