"""Each kind of entry becomes the bytes that protobuf would write of a Trace that holds nothing else."""

from __future__ import annotations

import pytest
from envtrio.v1 import episode_pb2

from env_worker import wire
from env_worker.delta.records import opening, record
from env_worker.domain import (
    Call,
    CallAdded,
    Change,
    EpisodeError,
    ErrorAdded,
    Finished,
    InfoSet,
    Link,
    LinkAdded,
    Message,
    MetricSet,
    Node,
    NodeAdded,
    OkSet,
    PendingSet,
    Reward,
    RewardSet,
    StopSet,
    ToolsSet,
    Trace,
)

NODE = Node(Message.user("x" * 300), [1, 2, 3])
BARE = Node(Message.user(""))
CALL = Call(node=0, model="m")
ERROR = EpisodeError("E", "m")
LINK = Link(0, 0, "returned")


@pytest.mark.parametrize(
    ("change", "trace"),
    [
        (NodeAdded(7, NODE), episode_pb2.Trace(nodes=[wire.node(NODE)])),
        (NodeAdded(0, BARE), episode_pb2.Trace(nodes=[wire.node(BARE)])),
        (CallAdded(7, CALL), episode_pb2.Trace(calls=[wire.call(CALL)])),
        (ErrorAdded(7, ERROR), episode_pb2.Trace(errors=[wire.error(ERROR)])),
        (LinkAdded(7, LINK), episode_pb2.Trace(links=[wire.link(LINK)])),
        (RewardSet("r", Reward(0.0)), episode_pb2.Trace(rewards={"r": wire.reward(Reward(0.0))})),
        (MetricSet("m", 0.0), episode_pb2.Trace(metrics={"m": 0.0})),
        (InfoSet("", "null"), episode_pb2.Trace(info_json={"": "null"})),
        (OkSet(False), episode_pb2.Trace(ok=False)),
        (StopSet(""), episode_pb2.Trace(stop_condition="")),
        (ToolsSet(""), episode_pb2.Trace(tools_json="")),
        (Finished(5), episode_pb2.Trace(finished_unix_nanos=5)),
    ],
)
def test_a_record_is_a_trace_that_holds_nothing_else(change: Change, trace: episode_pb2.Trace) -> None:
    assert record(change) == trace.SerializeToString()
    assert record(change), "what is empty would say nothing"


def test_the_opening_is_the_header() -> None:
    trace = Trace("t", "judge", model="m")
    assert opening(trace) == episode_pb2.Trace(header=wire.header(trace)).SerializeToString()


def test_a_preview_is_no_part_of_a_trace() -> None:
    with pytest.raises(TypeError, match=r"TraceDelta\.pending"):
        record(PendingSet(None))
