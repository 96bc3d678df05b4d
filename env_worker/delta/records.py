"""The entries of a journal as bytes of a Trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from envtrio.v1 import episode_pb2

from env_worker import wire
from env_worker.delta.frames import delimited, tag
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

if TYPE_CHECKING:
    from env_worker.domain import Change, Trace

_HEADER: Final = tag(episode_pb2.Trace.HEADER_FIELD_NUMBER)
_NODES: Final = tag(episode_pb2.Trace.NODES_FIELD_NUMBER)
_CALLS: Final = tag(episode_pb2.Trace.CALLS_FIELD_NUMBER)
_ERRORS: Final = tag(episode_pb2.Trace.ERRORS_FIELD_NUMBER)
_LINKS: Final = tag(episode_pb2.Trace.LINKS_FIELD_NUMBER)


def opening(trace: Trace) -> bytes:
    """A serialized Trace that holds nothing but the header of `trace`."""
    return delimited(_HEADER, wire.header(trace).SerializeToString())


def record(change: Change) -> bytes:
    """A serialized Trace that holds nothing but `change`: laid behind what came before it, it is the change.

    TypeError for a preview, which is no part of a trace: see `wire.pending`.
    """
    # What a trace holds many of is framed here: to put it into a Trace would copy it twice.
    match change:
        case NodeAdded(_, node):
            return delimited(_NODES, wire.node(node).SerializeToString())
        case CallAdded(_, call):
            return delimited(_CALLS, wire.call(call).SerializeToString())
        case ErrorAdded(_, error):
            return delimited(_ERRORS, wire.error(error).SerializeToString())
        case LinkAdded(_, link):
            return delimited(_LINKS, wire.link(link).SerializeToString())
        case RewardSet(name, reward):
            part = episode_pb2.Trace(rewards={name: wire.reward(reward)})
        case MetricSet(name, value):
            part = episode_pb2.Trace(metrics={name: value})
        case InfoSet(key, json_text):
            part = episode_pb2.Trace(info_json={key: json_text})
        case OkSet(ok):
            part = episode_pb2.Trace(ok=ok)
        case StopSet(condition):
            part = episode_pb2.Trace(stop_condition=condition)
        case ToolsSet(json_text):
            part = episode_pb2.Trace(tools_json=json_text)
        case Finished(unix_ns):
            part = episode_pb2.Trace(finished_unix_nanos=unix_ns)
        case PendingSet():
            raise TypeError("a preview is no part of a trace; send it as TraceDelta.pending")
    return part.SerializeToString()
