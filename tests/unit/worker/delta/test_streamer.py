"""The streamer: what to write next, until the reply."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
from envtrio.v1 import delta_pb2, episode_pb2

from env_worker.delta.limits import MessageTooLargeError
from env_worker.delta.streamer import DeltaStreamer, join
from env_worker.domain import Change, Episode, Journal, Message

HEAD = episode_pb2.EpisodeHead(episode_id="0" * 32, task_json="{}", ok=True)


@pytest.fixture
def episode() -> Episode:
    return Episode("0" * 32, "test", {})


def parsed(data: bytes | None) -> delta_pb2.DeltaStream:
    assert data is not None
    return delta_pb2.DeltaStream.FromString(data)


def written(streamer: DeltaStreamer) -> list[delta_pb2.DeltaStream]:
    """Everything that is new, as messages that were written."""
    messages = []
    while (data := streamer.next_message()) is not None:
        messages.append(parsed(data))
        streamer.commit()
    return messages


def test_one_message_carries_every_touched_trace_in_order(episode: Episode) -> None:
    traces = [episode.new_trace(agent) for agent in ("a", "b", "c")]
    traces[2].add_node(Message.user("first of all"))
    (message,) = written(DeltaStreamer(episode))
    assert [delta.append.header.agent for delta in message.deltas] == ["a", "b", "c"]
    assert not message.HasField("reply")


def test_nothing_new_is_none(episode: Episode) -> None:
    streamer = DeltaStreamer(episode)
    assert streamer.next_message() is None
    trace = episode.new_trace()
    written(streamer)
    assert streamer.next_message() is None
    trace.set_pending([Message.user("came")])
    trace.clear_pending()
    assert streamer.next_message() is None


def test_gives_the_same_message_until_it_is_committed(episode: Episode) -> None:
    streamer = DeltaStreamer(episode)
    trace = episode.new_trace()
    first = streamer.next_message()
    trace.add_node(Message.user("while the write is blocked"))
    trace.add_node(Message.user("coalesced"), parent=0)
    assert streamer.next_message() is first
    streamer.commit()
    (second,) = written(streamer)
    assert [(delta.seq, len(delta.append.nodes)) for delta in second.deltas] == [(1, 2)]


def test_a_commit_without_a_message_is_refused(episode: Episode) -> None:
    with pytest.raises(RuntimeError, match="next_message first"):
        DeltaStreamer(episode).commit()


@pytest.mark.parametrize("target_bytes", [0, -1, 101])
def test_a_target_beyond_the_limit_is_refused(episode: Episode, target_bytes: int) -> None:
    with pytest.raises(
        ValueError, match=rf"target_bytes is {target_bytes}, expected 1 to max_bytes, which is 100"
    ):
        DeltaStreamer(episode, target_bytes=target_bytes, max_bytes=100)


def test_messages_stay_near_the_target_and_keep_each_traces_order(episode: Episode) -> None:
    traces = [episode.new_trace() for _ in range(5)]
    for turn in range(20):
        for trace in traces:
            trace.add_node(Message.user("x" * 50), parent=turn - 1 if turn else None)
    messages = written(DeltaStreamer(episode, target_bytes=1_000))
    sizes = [message.ByteSize() for message in messages]
    assert max(sizes) <= 1_000
    assert min(sizes[:-1]) > 700
    for trace in traces:
        seqs = [delta.seq for message in messages for delta in message.deltas if delta.trace_id == trace.id]
        assert seqs == list(range(len(seqs)))


def test_a_large_entry_goes_in_a_message_of_its_own(episode: Episode) -> None:
    for size in (10, 5_000, 10):
        episode.new_trace().add_node(Message.user("x" * size))
    messages = written(DeltaStreamer(episode, target_bytes=1_000, max_bytes=10_000))
    assert [message.ByteSize() > 5_000 for message in messages] == [False, True, False]


def test_a_discarded_trace_leaves_and_is_forgotten(episode: Episode) -> None:
    streamer = DeltaStreamer(episode)
    kept, given_up = episode.new_trace(), episode.new_trace()
    written(streamer)
    episode.discard_trace(given_up)
    never_opened = episode.new_trace()
    episode.discard_trace(never_opened)
    (message,) = written(streamer)
    assert [(delta.trace_id, delta.discard) for delta in message.deltas] == [(given_up.id, True)]
    reply = parsed(streamer.reply(HEAD)).reply
    assert [counts.trace_id for counts in reply.traces] == [kept.id]


def test_a_discarded_trace_is_not_held_in_memory(episode: Episode) -> None:
    streamer = DeltaStreamer(episode)
    given_up = episode.new_trace()
    written(streamer)
    episode.discard_trace(given_up)
    written(streamer)
    reference = weakref.ref(given_up)
    del given_up
    gc.collect()
    assert reference() is None


def test_reads_every_entry_once_however_often_it_looks(episode: Episode) -> None:
    class Counted(list[Change]):
        reads = 0

        def __getitem__(self, index: Any) -> Any:
            self.reads += 1
            return super().__getitem__(index)

    trace = episode.new_trace()
    entries = Counted()
    trace.journal = Journal(0, entries)
    streamer = DeltaStreamer(episode)
    for turn in range(20):
        trace.set_pending([Message.user("came and went")])
        trace.clear_pending()
        written(streamer)
        trace.set_metric("turn", turn)
        written(streamer)
    assert entries.reads == len(entries)


def test_an_entry_beyond_the_limit_names_field_value_and_limit(episode: Episode) -> None:
    streamer = DeltaStreamer(episode, target_bytes=500, max_bytes=2_000)
    trace = episode.new_trace()
    for size in (10, 10, 10, 3_000):
        trace.add_node(Message.user("x" * size))
    streamer.next_message()
    streamer.commit()
    with pytest.raises(MessageTooLargeError) as raised:
        streamer.next_message()
    assert raised.value.field == "nodes[3].message.content[0].text of trace 'trace-0'"
    assert raised.value.limit == 2_000
    assert 3_000 <= raised.value.value < 3_200
    assert "3" in str(raised.value)
    assert "2000 bytes" in str(raised.value)


def test_a_header_beyond_the_limit_is_named(episode: Episode) -> None:
    episode.new_trace("a" * 500)
    with pytest.raises(MessageTooLargeError, match=r"append\.header\.agent of trace 'trace-0'"):
        DeltaStreamer(episode, target_bytes=100, max_bytes=300).next_message()


def test_no_message_is_beyond_the_limit_and_what_fits_crosses() -> None:
    crossed = 0
    for size in range(1_900, 2_000):
        episode = Episode("0" * 32, "test", {})
        streamer = DeltaStreamer(episode, target_bytes=500, max_bytes=2_000)
        episode.new_trace().add_node(Message.user("x" * size))
        streamer.next_message()  # the header
        streamer.commit()
        try:
            data = streamer.next_message()
        except MessageTooLargeError:
            continue
        assert data is not None
        assert len(data) <= 2_000
        crossed += 1
    assert crossed > 40


def test_many_small_deltas_do_not_exceed_the_target(episode: Episode) -> None:
    for _ in range(300):
        episode.new_trace()
    sizes = [message.ByteSize() for message in written(DeltaStreamer(episode, target_bytes=2_000))]
    assert max(sizes) <= 2_000


def test_the_reply_counts_what_was_sent(episode: Episode) -> None:
    streamer = DeltaStreamer(episode)
    trace = episode.new_trace()
    trace.add_node(Message.user("x"), [1, 2, 3])
    trace.set_reward("a", 1.0)
    trace.set_reward("a", 2.0)
    written(streamer)
    trace.add_node(Message.user("y"), [4], parent=0)
    trace.info["k"] = 1
    written(streamer)
    reply = parsed(streamer.reply(HEAD)).reply
    assert reply.head == HEAD
    assert list(reply.traces) == [
        delta_pb2.TraceCounts(trace_id="trace-0", deltas=2, nodes=2, rewards=1, info_entries=1, tokens=4)
    ]


def test_a_reply_before_the_flush_is_refused(episode: Episode) -> None:
    streamer = DeltaStreamer(episode)
    episode.new_trace()
    with pytest.raises(RuntimeError, match="changes wait to be sent"):
        streamer.reply(HEAD)


def test_a_stragglers_trace_is_not_counted(episode: Episode, monkeypatch: pytest.MonkeyPatch) -> None:
    streamer = DeltaStreamer(episode)
    sent = episode.new_trace()
    written(streamer)
    # As if it came right behind the last look.
    monkeypatch.setattr(episode, "take_touched", lambda: iter(()))
    episode.new_trace()
    assert [counts.trace_id for counts in parsed(streamer.reply(HEAD)).reply.traces] == [sent.id]


def test_a_head_beyond_the_limit_is_named(episode: Episode) -> None:
    head = episode_pb2.EpisodeHead(task_json='{"text":"' + "x" * 500 + '"}')
    streamer = DeltaStreamer(episode, target_bytes=100, max_bytes=300)
    with pytest.raises(MessageTooLargeError, match=r"reply\.head\.task_json"):
        streamer.reply(head)


def test_the_final_messages_join_the_reply_to_the_last(episode: Episode) -> None:
    streamer = DeltaStreamer(episode)
    episode.new_trace()
    (data,) = streamer.final_messages(HEAD)
    assert len(parsed(data).deltas) == 1
    assert parsed(data).HasField("reply")


def test_the_final_message_is_the_reply_where_all_was_sent(episode: Episode) -> None:
    streamer = DeltaStreamer(episode)
    episode.new_trace()
    written(streamer)
    (data,) = streamer.final_messages(HEAD)
    assert data == streamer.reply(HEAD)


def test_the_reply_goes_alone_where_it_does_not_fit(episode: Episode) -> None:
    streamer = DeltaStreamer(episode, target_bytes=200, max_bytes=300)
    trace = episode.new_trace()
    for _ in range(2):
        trace.add_node(Message.user("x" * 230))
    messages = [parsed(data) for data in streamer.final_messages(HEAD)]
    assert [(len(message.deltas), message.HasField("reply")) for message in messages] == [
        (1, False),
        (1, False),
        (1, False),
        (0, True),
    ]


@pytest.mark.parametrize(("max_bytes", "expected"), [(6, [b"abcdef"]), (5, [b"abc", b"def"])])
def test_join_stays_below_the_limit(max_bytes: int, expected: list[bytes]) -> None:
    assert join(b"abc", b"def", max_bytes=max_bytes) == expected


def test_no_change_of_another_thread_is_missed(episode: Episode) -> None:
    changed = threading.Event()
    episode.on_change = changed.set
    nodes = 500

    def write() -> None:
        traces = [episode.new_trace() for _ in range(3)]
        for _ in range(nodes):
            for trace in traces:
                trace.add_node(Message.user("x"), [1])

    writer = threading.Thread(target=write)
    streamer = DeltaStreamer(episode, target_bytes=2_000)
    received = dict.fromkeys(("trace-0", "trace-1", "trace-2"), 0)
    writer.start()
    while any(count < nodes for count in received.values()):
        assert changed.wait(30), f"a change was never announced; received {received}"
        changed.clear()
        for message in written(streamer):
            for delta in message.deltas:
                received[delta.trace_id] += len(delta.append.nodes)
    writer.join()
    assert set(received.values()) == {nodes}
