"""The diff: only what is new, each thing once, in pieces near the budget."""

from __future__ import annotations

import threading

import pytest
from envtrio.v1 import delta_pb2

from env_worker.delta.diff import TraceCursor, diff
from env_worker.domain import Episode, EpisodeError, Message, Trace

PLENTY = 1024 * 1024


@pytest.fixture
def episode() -> Episode:
    return Episode("0" * 32, "test", {})


@pytest.fixture
def trace(episode: Episode) -> Trace:
    return episode.new_trace("agent", model="simulated")


def drain(trace: Trace, cursor: TraceCursor, budget: int) -> tuple[list[delta_pb2.TraceDelta], TraceCursor]:
    deltas: list[delta_pb2.TraceDelta] = []
    while True:
        data, cursor = diff(trace, cursor, budget)
        if data is None:
            return deltas, cursor
        deltas.append(delta_pb2.TraceDelta.FromString(data))


def sent(trace: Trace, cursor: TraceCursor) -> tuple[delta_pb2.TraceDelta, TraceCursor]:
    data, cursor = diff(trace, cursor, PLENTY)
    assert data is not None
    return delta_pb2.TraceDelta.FromString(data), cursor


def test_an_opening_carries_the_header_even_without_an_entry(trace: Trace) -> None:
    delta, cursor = sent(trace, TraceCursor())
    assert (delta.trace_id, delta.seq, delta.discard) == ("trace-0", 0, False)
    assert (delta.append.header.trace_id, delta.append.header.agent) == ("trace-0", "agent")
    assert cursor == TraceCursor(generation=0, position=0, seq=1, opened=True)


def test_a_growth_carries_only_what_is_new_and_no_header(trace: Trace) -> None:
    trace.add_node(Message.user("one"))
    _, cursor = sent(trace, TraceCursor())
    trace.add_node(Message.user("two"), parent=0)
    trace.set_reward("correct", 0.5)
    delta, cursor = sent(trace, cursor)
    assert delta.seq == 1
    assert not delta.append.HasField("header")
    assert [node.message.content[0].text for node in delta.append.nodes] == ["two"]
    assert dict(delta.append.rewards)["correct"].value == 0.5
    assert cursor.position == 3


def test_nothing_new_is_no_delta_and_moves_nothing(trace: Trace) -> None:
    _, cursor = sent(trace, TraceCursor())
    assert diff(trace, cursor, PLENTY) == (None, cursor)


def test_is_pure(trace: Trace) -> None:
    trace.add_node(Message.user("one"))
    trace.set_pending([Message.user("two")], 0)
    assert diff(trace, TraceCursor(), PLENTY) == diff(trace, TraceCursor(), PLENTY)


def test_splits_at_entry_borders_near_the_budget(trace: Trace) -> None:
    for _ in range(20):
        trace.add_node(Message.user("x" * 100))
    deltas, cursor = drain(trace, TraceCursor(), 500)
    assert [delta.seq for delta in deltas] == list(range(len(deltas)))
    assert all(delta.ByteSize() <= 500 for delta in deltas)
    assert 4 <= len(deltas) <= 10
    assert sum(len(delta.append.nodes) for delta in deltas) == 20
    assert cursor.position == 20


def test_an_entry_beyond_the_budget_goes_alone(trace: Trace) -> None:
    for size in (10, 5_000, 10):
        trace.add_node(Message.user("x" * size))
    deltas, _ = drain(trace, TraceCursor(), 1_000)
    texts = [[len(node.message.content[0].text) for node in delta.append.nodes] for delta in deltas]
    assert texts == [[10], [5_000], [10]]


def test_a_budget_of_nothing_still_moves_on(trace: Trace) -> None:
    trace.set_pending([Message.user("asked")])
    trace.add_node(Message.user("x"))
    deltas, _ = drain(trace, TraceCursor(), 0)
    assert [(len(delta.append.nodes), len(delta.pending.messages)) for delta in deltas] == [
        (0, 0),
        (0, 1),
        (1, 0),
    ]


def test_no_reader_sees_a_preview_gone_and_its_turn_not_landed(episode: Episode, trace: Trace) -> None:
    trace.set_pending([Message.user("asked")])
    _, cursor = sent(trace, TraceCursor())
    seen: list[tuple[int, bool]] = []

    def read() -> None:
        for touched in episode.take_touched():
            delta, _ = sent(touched, cursor)
            seen.append((len(delta.append.nodes), delta.HasField("pending")))

    assert list(episode.take_touched()) == [trace]
    episode.on_change = read
    trace.add_node(Message.assistant("answered"), [7], sampled=True)
    assert seen == [(1, True)]


def test_discarding_an_open_trace_is_a_discard_alone(episode: Episode, trace: Trace) -> None:
    trace.add_node(Message.user("lost"))
    _, cursor = sent(trace, TraceCursor())
    trace.add_node(Message.user("never sent"), parent=0)
    episode.discard_trace(trace)
    delta, cursor = sent(trace, cursor)
    assert (delta.discard, delta.seq) == (True, 0)
    assert not delta.HasField("append")
    assert not delta.HasField("pending")
    assert diff(trace, cursor, PLENTY) == (None, TraceCursor())


def test_discarding_a_trace_that_was_never_opened_is_nothing(episode: Episode, trace: Trace) -> None:
    episode.discard_trace(trace)
    assert diff(trace, TraceCursor(), PLENTY) == (None, TraceCursor())


def test_a_rewrite_discards_and_opens_anew(trace: Trace) -> None:
    trace.add_node(Message.user("one"))
    trace.add_error(EpisodeError("Late", "second"))
    _, cursor = sent(trace, TraceCursor())
    trace.rewrite_errors([EpisodeError("Early", "first"), *trace.errors])
    delta, cursor = sent(trace, cursor)
    assert (delta.discard, delta.seq) == (True, 0)
    assert delta.append.HasField("header")
    assert len(delta.append.nodes) == 1
    assert [error.type for error in delta.append.errors] == ["Early", "Late"]
    assert (cursor.generation, cursor.seq) == (1, 1)


def test_a_rewrite_before_the_opening_discards_nothing(trace: Trace) -> None:
    trace.info["key"] = 1
    del trace.info["key"]
    delta, _ = sent(trace, TraceCursor())
    assert (delta.discard, delta.seq) == (False, 0)
    assert delta.append.HasField("header")
    assert not delta.append.info_json


def test_a_rewrite_in_the_middle_of_a_split_starts_over(trace: Trace) -> None:
    for _ in range(3):
        trace.add_node(Message.user("x" * 100))
    first, cursor = diff(trace, TraceCursor(), 250)
    assert first is not None
    trace.info["key"] = 1
    del trace.info["key"]
    deltas, _ = drain(trace, cursor, 250)
    assert [(delta.discard, delta.seq) for delta in deltas] == [(True, 0), (False, 1), (False, 2)]
    assert sum(len(delta.append.nodes) for delta in deltas) == 3


def test_a_preview_is_sent_replaced_and_dropped(trace: Trace) -> None:
    trace.set_pending([Message.user("one")])
    delta, cursor = sent(trace, TraceCursor())
    assert [message.content[0].text for message in delta.pending.messages] == ["one"]
    trace.set_pending([Message.user("two")])
    trace.set_pending([Message.user("three"), Message.user("four")])
    delta, cursor = sent(trace, cursor)
    assert [message.content[0].text for message in delta.pending.messages] == ["three", "four"]
    assert not delta.HasField("append")
    trace.clear_pending()
    delta, cursor = sent(trace, cursor)
    assert delta.HasField("pending")
    assert not delta.pending.messages
    assert cursor.previewed is False


def test_a_preview_that_came_and_went_unsent_is_nothing(trace: Trace) -> None:
    _, cursor = sent(trace, TraceCursor())
    trace.set_pending([Message.user("one")])
    trace.clear_pending()
    delta, moved = diff(trace, cursor, PLENTY)
    assert delta is None
    assert (moved.position, moved.seq) == (2, 1)


def test_a_landing_turn_drops_its_preview_in_the_same_delta(trace: Trace) -> None:
    trace.set_pending([Message.user("asked")])
    _, cursor = sent(trace, TraceCursor())
    trace.add_node(Message.assistant("answer"), [1], sampled=True, logprobs=[-0.5])
    delta, _ = sent(trace, cursor)
    assert len(delta.append.nodes) == 1
    assert delta.HasField("pending")
    assert not delta.pending.messages


def test_a_reopened_trace_has_no_preview_to_drop(trace: Trace) -> None:
    trace.set_pending([Message.user("asked")])
    _, cursor = sent(trace, TraceCursor())
    trace.clear_pending()
    trace.rewrite_errors([])
    delta, cursor = sent(trace, cursor)
    assert delta.discard
    assert not delta.HasField("pending")
    assert cursor.previewed is False


def test_a_large_preview_waits_for_its_own_delta(trace: Trace) -> None:
    trace.add_node(Message.user("x"))
    trace.set_pending([Message.user("y" * 2_000)], 0)
    trace.add_node(Message.user("z"), parent=0)
    deltas, _ = drain(trace, TraceCursor(), 1_000)
    assert [(len(delta.append.nodes), len(delta.pending.messages)) for delta in deltas] == [
        (1, 0),
        (0, 1),
        (1, 0),
    ]


def test_reads_each_entry_once_while_another_thread_writes(trace: Trace) -> None:
    count = 3_000

    def write() -> None:
        for step in range(1, count + 1):
            trace.set_metric("step", step)

    writer = threading.Thread(target=write)
    cursor, last, reads = TraceCursor(), 0.0, 0
    writer.start()
    while last < count:
        data, moved = diff(trace, cursor, 2_000)
        assert moved.position >= cursor.position
        reads += moved.position - cursor.position
        cursor = moved
        metrics = delta_pb2.TraceDelta.FromString(data or b"").append.metrics
        if metrics:
            assert metrics["step"] > last
            last = metrics["step"]
    writer.join()
    assert reads == count
