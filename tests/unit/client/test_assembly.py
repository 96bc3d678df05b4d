"""EpisodeAssembly against the grammar of delta.proto."""

from __future__ import annotations

import contextlib
import weakref

import pytest
from envtrio.v1.delta_pb2 import DeltaStream
from envtrio.v1.episode_pb2 import Episode, Trace

from env_client import AssemblyError, EpisodeAssembly
from tests.helpers.deltas import episode_stream, growth, opening, reply
from tests.helpers.oracle import assembly_equals_source


def assembled(*messages: DeltaStream) -> EpisodeAssembly:
    assembly = EpisodeAssembly()
    for message in messages:
        assembly.apply(message)
    return assembly


def one(trace_id: str = "t", seq: int = 0, *, discard: bool = False) -> DeltaStream:
    message = DeltaStream()
    message.deltas.add(trace_id=trace_id, seq=seq, discard=discard)
    return message


def test_merges_into_the_whole() -> None:
    messages = episode_stream(3)
    assembly = EpisodeAssembly()
    for message in messages:
        assert assembly.apply(message.SerializeToString()) == message
    episode = assembly.finish()
    expected = Trace()
    for message in messages:
        for delta in message.deltas:
            expected.MergeFrom(delta.append)
    assembly_equals_source(episode, Episode(head=messages[-1].reply.head, traces=[expected]))
    assert assembly.finish() is episode


def test_joined_bytes_are_one_message() -> None:
    messages = episode_stream(3)
    assembly = EpisodeAssembly()
    assembly.apply(b"".join(message.SerializeToString() for message in messages))
    assert assembly.replied
    assert assembly.finish() == assembled(*messages).finish()


def test_traces_grow_and_come_in_the_order_of_the_reply() -> None:
    a, b, more = opening("a"), opening("b"), growth(1, "a")
    assembly = assembled(a, b)
    assert {name: len(trace.nodes) for name, trace in assembly.traces.items()} == {"a": 1, "b": 1}
    view = assembly.traces["a"]
    assembly.apply(more)
    assert len(view.nodes) == 2
    end = reply(a, b, more)
    end.reply.traces.sort(key=lambda counts: counts.trace_id, reverse=True)
    assembly.apply(end)
    assert [trace.header.trace_id for trace in assembly.finish().traces] == ["b", "a"]


def test_discard_without_append_forgets() -> None:
    kept, gone, more = opening("kept"), opening("gone"), growth(1, "kept")
    assembly = assembled(gone, kept, growth(1, "gone"), one("gone", discard=True), more)
    assert list(assembly.traces) == ["kept"]
    assembly.apply(reply(kept, more))
    assert [trace.header.trace_id for trace in assembly.finish().traces] == ["kept"]


def test_discard_with_append_opens_anew_in_one_joined_message() -> None:
    anew, more = opening(discard=True, tokens_given=7), growth(1)
    parts = (opening(), growth(1), growth(2), anew, more, reply(anew, more))
    assembly = EpisodeAssembly()
    assembly.apply(b"".join(part.SerializeToString() for part in parts))
    (trace,) = assembly.finish().traces
    assert [len(node.mask) for node in trace.nodes] == [7, 3]


def test_a_discarded_trace_may_open_again_later() -> None:
    again = opening()
    assembly = assembled(opening(), one(discard=True), again, reply(again))
    assert len(assembly.finish().traces) == 1


def test_pending_is_replaced_dropped_and_no_part_of_the_episode() -> None:
    first = opening()
    first.deltas[0].pending.messages.add(name="one")
    replaced, unchanged, dropped = one(seq=1), growth(2, parent=0), one(seq=3)
    replaced.deltas[0].pending.messages.add(name="two")
    dropped.deltas[0].pending.SetInParent()
    assembly = assembled(first)
    assert assembly.pending("t") == first.deltas[0].pending
    assembly.apply(replaced)
    assembly.apply(unchanged)
    assert assembly.pending("t") == replaced.deltas[0].pending
    assembly.apply(dropped)
    assert assembly.pending("t") is None
    assert assembly.pending("no such trace") is None
    assembly.apply(reply(first, replaced, unchanged, dropped))
    assert len(assembly.finish().traces[0].nodes) == 2


def test_changes_of_what_may_change() -> None:
    first, second = opening(), growth(1)
    first.deltas[0].append.ok = True
    first.deltas[0].append.rewards["r"].value = 1.0
    first.deltas[0].append.rewards["r"].weight = 1.0
    second.deltas[0].append.ok = False
    second.deltas[0].append.rewards["r"].weight = 0.5
    (trace,) = assembled(first, second, reply(first, second)).finish().traces
    assert trace.HasField("ok")
    assert not trace.ok
    # The entry was sent whole, so the value that it does not have is gone.
    assert not trace.rewards["r"].HasField("value")
    assert trace.rewards["r"].weight == 0.5


def test_unknown_fields_are_dropped() -> None:
    unknown = b"\xca\x3e\x03new"  # Field 1001, length-delimited.
    node = opening().deltas[0].append.nodes[0].SerializeToString() + unknown
    first = opening()
    first.deltas[0].append.nodes[0].ParseFromString(node)
    assert unknown in first.SerializeToString()
    episode = assembled(first, reply(first)).finish()
    assert unknown not in episode.SerializeToString()


def headless() -> DeltaStream:
    message = opening()
    message.deltas[0].append.ClearField("header")
    return message


def misnamed() -> DeltaStream:
    message = opening()
    message.deltas[0].append.header.trace_id = "other"
    return message


def second_header() -> DeltaStream:
    message = opening()
    message.deltas[0].seq = 1
    return message


def discard_with_pending() -> DeltaStream:
    message = one(discard=True)
    message.deltas[0].pending.SetInParent()
    return message


FIRST = opening()
END = reply(FIRST)


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([FIRST, growth(2)], "trace 't', seq: found 2, expected 1"),
        ([FIRST, growth(1), growth(1)], "trace 't', seq: found 1, expected 2"),
        ([FIRST, FIRST], "trace 't', seq: found 0, expected 1"),
        ([growth(1)], "trace 't', seq: found 1, expected 0, for the trace is not open"),
        ([one()], "trace 't', append.header: found none at seq 0, expected the trace's header"),
        ([headless()], "trace 't', append.header: found none"),
        ([misnamed()], "append.header.trace_id: found 'other', expected 't'"),
        ([FIRST, second_header()], "append.header: found a second one at seq 1"),
        ([one(discard=True)], "trace 't', discard: found a discard of a trace that is not open"),
        ([opening(discard=True)], "discard of a trace that is not open"),
        ([FIRST, one(seq=1, discard=True)], "discard: found seq 1, pending unset"),
        ([FIRST, discard_with_pending()], "discard: found seq 0, pending set"),
        ([FIRST, one(discard=True), growth(1)], "seq: found 1, expected 0"),
        ([FIRST, END, growth(1)], "trace 't', stream: found delta seq 1 after the reply"),
        ([FIRST, END, END], "found a second reply"),
    ],
)
def test_breaks_of_the_grammar_are_errors_at_once(messages: list[DeltaStream], found: str) -> None:
    assembly = assembled(*messages[:-1])
    with pytest.raises(AssemblyError) as caught:
        assembly.apply(messages[-1])
    assert found in str(caught.value)
    assert (caught.value.code, caught.value.reason) == ("INTERNAL", "PROTOCOL_VIOLATION")
    # Broken for good: what follows cannot be trusted.
    for use in (assembly.finish, lambda: assembly.apply(DeltaStream())):
        with pytest.raises(AssemblyError) as again:
            use()
        assert str(again.value) == str(caught.value)


def test_a_broken_assembly_goes_with_its_last_user() -> None:
    assembly = assembled(FIRST)
    with contextlib.suppress(AssemblyError):
        assembly.apply(growth(2))
    gone = weakref.ref(assembly)
    del assembly
    # Not only when the garbage collector finds it: it may hold a large part of an episode.
    assert gone() is None


def test_an_empty_message_after_the_reply_is_nothing() -> None:
    assembly = assembled(FIRST, END)
    assembly.apply(b"")
    assert len(assembly.finish().traces) == 1


def test_undecodable_bytes() -> None:
    with pytest.raises(AssemblyError, match="message of 3 bytes: found no valid DeltaStream"):
        EpisodeAssembly().apply(b"\xff\xff\xff")


def altered(**changes: int | str) -> DeltaStream:
    message = DeltaStream()
    message.CopyFrom(END)
    for name, value in changes.items():
        setattr(message.reply.traces[0], name, value)
    return message


def doubled() -> DeltaStream:
    message = DeltaStream()
    message.CopyFrom(END)
    message.reply.traces.append(END.reply.traces[0])
    return message


def without_head() -> DeltaStream:
    message = DeltaStream()
    message.CopyFrom(END)
    message.reply.ClearField("head")
    return message


COUNTS = ("deltas", "nodes", "calls", "errors", "links", "rewards", "metrics", "info_entries", "tokens")


@pytest.mark.parametrize(
    ("end", "found"),
    [
        (DeltaStream(), "without a reply; received so far: 1 traces"),
        (without_head(), "reply.head: found none"),
        (doubled(), "found 2 entries for 1 traces"),
        (altered(trace_id="other"), "trace 't', reply.traces: found no entry"),
        (reply(FIRST, opening("u")), "trace 'u', reply.traces: found an entry, expected none"),
        *((altered(**{field: 77}), f"count of {field}: found ") for field in COUNTS),
    ],
)
def test_an_end_that_does_not_fit(end: DeltaStream, found: str) -> None:
    with pytest.raises(AssemblyError) as caught:
        assembled(FIRST, end).finish()
    assert found in str(caught.value)
