"""Assembling is protobuf's own merge: each rule that this rests on, from the worker to the client.

`sent` is the worker's side (journal, diff, bytes), `EpisodeAssembly` the client's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from envtrio.v1 import delta_pb2, episode_pb2

from env_client.assembly import EpisodeAssembly
from env_worker import wire
from env_worker.delta.streamer import DeltaStreamer
from env_worker.domain import Episode, EpisodeError, Message

if TYPE_CHECKING:
    from env_worker.domain import Trace


class Wire:
    """A worker's trace, and a client that receives what is sent of it."""

    def __init__(self) -> None:
        self.episode = Episode("0" * 32, "test", {})
        self.trace = self.episode.new_trace("agent", model="simulated")
        self.streamer = DeltaStreamer(self.episode)
        self.client = EpisodeAssembly()

    def sent(self) -> bytes:
        """What is new, as one message that was written."""
        data = self.streamer.next_message()
        assert data is not None, "nothing was sent"
        self.streamer.commit()
        return data

    def cross(self) -> episode_pb2.Trace:
        """What is new crosses; the client's trace."""
        self.client.apply(self.sent())
        return self.received()

    def received(self, trace: Trace | None = None) -> episode_pb2.Trace:
        return self.client.traces[(trace or self.trace).id]

    def reply(self) -> bytes:
        return self.streamer.reply(
            wire.head(self.episode, task_json="{}", worker_instance="", duration_seconds=0.5)
        )


@pytest.fixture
def link() -> Wire:
    return Wire()


def test_what_grows_is_appended(link: Wire) -> None:
    for turn in range(3):
        link.trace.add_node(Message.user(f"turn {turn}"), parent=turn - 1 if turn else None)
        link.cross()
    assert [node.message.content[0].text for node in link.received().nodes] == ["turn 0", "turn 1", "turn 2"]


def test_a_changed_scalar_replaces(link: Wire) -> None:
    link.trace.set_stop("max_turns")
    assert link.cross().stop_condition == "max_turns"
    link.trace.set_stop("done")
    assert link.cross().stop_condition == "done"
    link.trace.set_stop("")
    assert link.cross().stop_condition == ""


def test_a_flag_can_be_reset(link: Wire) -> None:
    link.trace.set_ok(True)
    assert link.cross().ok is True
    link.trace.set_ok(False)
    received = link.cross()
    assert received.HasField("ok")
    assert received.ok is False


def test_a_plain_bool_could_not_be_reset() -> None:
    """Why `Trace.ok` is `optional`: a plain bool that is false leaves no byte to merge."""
    merged = episode_pb2.Node(sampled=True)
    merged.MergeFrom(episode_pb2.Node(sampled=False))
    assert merged.sampled is True


def test_a_map_entry_is_replaced_whole(link: Wire) -> None:
    link.trace.set_reward("judge", 0.5, weight=2.0)
    link.trace.set_reward("format", 1.0)
    assert link.cross().rewards["judge"] == episode_pb2.Reward(value=0.5, weight=2.0)
    link.trace.set_reward("judge", None, weight=0.0)
    received = link.cross()
    assert received.rewards["judge"] == episode_pb2.Reward(weight=0.0)
    assert not received.rewards["judge"].HasField("value")
    assert received.rewards["format"] == episode_pb2.Reward(value=1.0, weight=1.0)


def test_a_metric_and_an_info_entry_are_replaced(link: Wire) -> None:
    link.trace.set_metric("turns", 3)
    link.trace.info["refs"] = [1, 2]
    link.cross()
    link.trace.set_metric("turns", 0)
    link.trace.info["refs"] = []
    received = link.cross()
    assert dict(received.metrics) == {"turns": 0.0}
    assert dict(received.info_json) == {"refs": "[]"}


def test_a_removed_key_is_a_discard_and_a_reopening(link: Wire) -> None:
    link.trace.add_node(Message.user("x"))
    link.trace.info["keep"] = 1
    link.trace.info["remove"] = 2
    link.cross()
    del link.trace.info["remove"]
    data = link.sent()
    (delta,) = delta_pb2.DeltaStream.FromString(data).deltas
    assert (delta.discard, delta.seq, delta.append.HasField("header")) == (True, 0, True)
    link.client.apply(data)
    assert dict(link.received().info_json) == {"keep": "1"}
    assert len(link.received().nodes) == 1


def test_a_rewritten_error_history_is_a_discard_and_a_reopening(link: Wire) -> None:
    link.trace.add_error(EpisodeError("Second", "m"))
    link.cross()
    link.trace.rewrite_errors([EpisodeError("First", "m"), *link.trace.errors])
    assert [error.type for error in link.cross().errors] == ["First", "Second"]


def test_parent_zero_is_a_node_and_no_parent_a_root(link: Wire) -> None:
    link.trace.add_node(Message.system("root"))
    link.trace.add_node(Message.user("child"), parent=0)
    root, child = link.cross().nodes
    assert not root.HasField("parent")
    assert child.HasField("parent")
    assert child.parent == 0


def test_a_pending_is_replaced_as_a_whole(link: Wire) -> None:
    link.trace.add_node(Message.user("x"))
    link.trace.set_pending([Message.user("one"), Message.user("two")], 0)
    link.cross()
    link.trace.set_pending([Message.user("three")])
    link.cross()
    preview = link.client.pending("trace-0")
    assert preview is not None
    assert [message.content[0].text for message in preview.messages] == ["three"]
    assert not preview.HasField("parent")


def test_an_absent_pending_is_unchanged_and_an_empty_one_dropped(link: Wire) -> None:
    link.trace.set_pending([Message.user("asked")])
    link.cross()
    link.trace.set_metric("m", 1)
    data = link.sent()
    assert not delta_pb2.DeltaStream.FromString(data).deltas[0].HasField("pending")
    link.client.apply(data)
    assert link.client.pending("trace-0") is not None
    link.trace.clear_pending()
    data = link.sent()
    assert delta_pb2.DeltaStream.FromString(data).deltas[0].HasField("pending")
    link.client.apply(data)
    assert link.client.pending("trace-0") is None


def test_a_submessage_is_sent_once_for_each_opening(link: Wire) -> None:
    link.cross()
    link.trace.set_metric("m", 1)
    assert not delta_pb2.DeltaStream.FromString(link.sent()).deltas[0].append.HasField("header")


def test_two_messages_joined_are_one(link: Wire) -> None:
    link.trace.add_node(Message.user("one"))
    first = link.sent()
    link.trace.add_node(Message.user("two"), parent=0)
    second = link.sent()
    joined = delta_pb2.DeltaStream.FromString(first + second)
    assert [delta.seq for delta in joined.deltas] == [0, 1]
    link.client.apply(first + second)
    assert len(link.received().nodes) == 2


def test_discard_and_reopening_within_one_joined_message(link: Wire) -> None:
    link.trace.add_node(Message.user("one"))
    link.trace.info["gone"] = 1
    first = link.sent()
    del link.trace.info["gone"]
    second = link.sent()
    link.trace.add_node(Message.user("two"), parent=0)
    third = link.sent()
    link.client.apply(first + second + third)
    assert [node.message.content[0].text for node in link.received().nodes] == ["one", "two"]
    assert not link.received().info_json


def test_a_discarded_attempt_within_one_joined_message(link: Wire) -> None:
    link.trace.add_node(Message.user("attempt 1"))
    first = link.sent()
    link.episode.discard_trace(link.trace)
    retried = link.episode.new_trace("agent")
    retried.add_node(Message.user("attempt 2"))
    link.client.apply(first + link.sent())
    assert list(link.client.traces) == [retried.id]
    assert link.received(retried).nodes[0].message.content[0].text == "attempt 2"


def test_a_reply_joined_behind_deltas(link: Wire) -> None:
    link.trace.add_node(Message.user("one"), [1, 2])
    first = link.sent()
    link.trace.set_reward("r", 1.0)
    second = link.sent()
    link.client.apply(first + second + link.reply())
    episode = link.client.finish()
    assert episode.head.episode_id == "0" * 32
    assert episode.traces[0].rewards["r"].value == 1.0


def test_unknown_fields_are_dropped(link: Wire) -> None:
    link.trace.add_node(Message.user("one"))
    message = delta_pb2.DeltaStream.FromString(link.sent())
    # Field 99 of a node, a varint, as a later version could send it.
    node = episode_pb2.Node.FromString(
        message.deltas[0].append.nodes[0].SerializeToString() + b"\x98\x06\x01"
    )
    known = episode_pb2.Node.FromString(message.deltas[0].append.nodes[0].SerializeToString())
    message.deltas[0].append.nodes[0].CopyFrom(node)
    assert b"\x98\x06\x01" in message.SerializeToString()
    link.client.apply(message.SerializeToString())
    link.client.apply(link.reply())
    (trace,) = link.client.finish().traces
    assert trace.nodes[0].SerializeToString() == known.SerializeToString()
