"""The counts of the reply are those of what was sent."""

from __future__ import annotations

from envtrio.v1 import delta_pb2

from env_worker.delta.counts import count_sent
from env_worker.delta.diff import TraceCursor
from env_worker.domain import Call, Episode, EpisodeError, Link, Message


def test_counts_everything_up_to_the_cursor_and_nothing_behind_it() -> None:
    trace = Episode("0" * 32, "test", {}).new_trace()
    trace.add_node(Message.user("x"), [1, 2])
    trace.add_node(Message.user("y"), [3], parent=0)
    trace.add_call(Call(node=1))
    trace.add_error(EpisodeError("E", "m"))
    trace.add_link(Link(0, 1, "returned"))
    for value in (1.0, 2.0):
        trace.set_reward("reward", value)
        trace.set_metric("metric", value)
        trace.info["key"] = value
    trace.set_pending([Message.user("z")], 1)
    cursor = TraceCursor(position=len(trace.journal.entries), seq=4, opened=True)
    trace.add_node(Message.user("a straggler"), [9], parent=1)
    assert count_sent(trace, cursor) == delta_pb2.TraceCounts(
        trace_id="trace-0",
        deltas=4,
        nodes=2,
        calls=1,
        errors=1,
        links=1,
        rewards=1,
        metrics=1,
        info_entries=1,
        tokens=3,
    )
