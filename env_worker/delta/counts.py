"""What a receiver must have assembled of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envtrio.v1 import delta_pb2

from env_worker.domain import CallAdded, ErrorAdded, InfoSet, LinkAdded, MetricSet, NodeAdded, RewardSet

if TYPE_CHECKING:
    from env_worker.delta.diff import TraceCursor
    from env_worker.domain import Trace


def count_sent(trace: Trace, cursor: TraceCursor) -> delta_pb2.TraceCounts:
    """The counts of `trace` up to `cursor`: of what was sent, not of what was written since."""
    counts = delta_pb2.TraceCounts(trace_id=trace.id, deltas=cursor.seq)
    rewards: set[str] = set()
    metrics: set[str] = set()
    info: set[str] = set()
    for change in trace.journal.entries[: cursor.position]:
        match change:
            case NodeAdded(_, node):
                counts.nodes += 1
                counts.tokens += len(node.token_ids)
            case CallAdded():
                counts.calls += 1
            case ErrorAdded():
                counts.errors += 1
            case LinkAdded():
                counts.links += 1
            case RewardSet(name, _):
                rewards.add(name)
            case MetricSet(name, _):
                metrics.add(name)
            case InfoSet(key, _):
                info.add(key)
    counts.rewards, counts.metrics, counts.info_entries = len(rewards), len(metrics), len(info)
    return counts
