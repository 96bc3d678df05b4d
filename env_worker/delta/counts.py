"""What a receiver must have assembled of a trace."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from envtrio.v1 import delta_pb2

from env_worker.domain import CallAdded, ErrorAdded, InfoSet, LinkAdded, MetricSet, NodeAdded, RewardSet

if TYPE_CHECKING:
    from env_worker.delta.diff import TraceCursor
    from env_worker.domain import Trace


def count_sent(trace: Trace, cursor: TraceCursor) -> delta_pb2.TraceCounts:
    """The counts of `trace` up to `cursor`: of what was sent, not of what was written since."""
    sent = trace.journal.entries[: cursor.position]
    kinds = Counter(map(type, sent))  # most traces have few kinds: what is not there is not looked for
    return delta_pb2.TraceCounts(
        trace_id=trace.id,
        deltas=cursor.seq,
        nodes=kinds[NodeAdded],
        calls=kinds[CallAdded],
        errors=kinds[ErrorAdded],
        links=kinds[LinkAdded],
        rewards=kinds[RewardSet] and len({change.name for change in sent if type(change) is RewardSet}),
        metrics=kinds[MetricSet] and len({change.name for change in sent if type(change) is MetricSet}),
        info_entries=kinds[InfoSet] and len({change.key for change in sent if type(change) is InfoSet}),
        tokens=sum([len(change.node.token_ids) for change in sent if type(change) is NodeAdded]),
    )
