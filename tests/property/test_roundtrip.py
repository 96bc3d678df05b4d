"""However an episode is made and cut up, its assembly equals its source but for the training arrays."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from envtrio.v1 import delta_pb2, episode_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from env_client.assembly import EpisodeAssembly
from env_worker import wire
from env_worker.delta.counts import count_sent
from env_worker.delta.diff import TraceCursor, diff
from env_worker.delta.streamer import DeltaStreamer
from env_worker.domain import Episode, Message, Trace
from tests.helpers import oracle
from tests.helpers.history import Asked, Ended, History, Passed
from tests.helpers.operations import Flush, NewTrace
from tests.helpers.strategies import new_episode, programs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.helpers.operations import Operation

RUN = "1" * 32
_thorough = settings(max_examples=200)
_joins = st.lists(st.booleans(), min_size=1, max_size=16)


@_thorough
@given(program=programs, joins=_joins, last_budget=st.integers(0, 2000))
def test_diffs_of_any_budget_assemble_to_their_source(
    program: Sequence[Operation], joins: list[bool], last_budget: int
) -> None:
    episode = new_episode()
    cursors: dict[Trace, TraceCursor] = {}
    messages: list[bytes] = []

    def look(budget_bytes: int) -> bool:
        """One diff of each touched trace, as the cursors have it. False once nothing is new."""
        went = False
        for trace in list(episode.take_touched()):
            data, cursors[trace] = diff(trace, cursors.get(trace, TraceCursor()), budget_bytes)
            if data is not None:
                delta = delta_pb2.TraceDelta.FromString(data)
                messages.append(delta_pb2.DeltaStream(deltas=[delta]).SerializeToString())
                trace.touch()  # there may be more behind the budget
                went = True
        return went

    for operation in program:
        operation.apply(episode)
        if isinstance(operation, Flush):
            look(operation.budget_bytes)
    while look(last_budget):
        pass
    counts = [count_sent(trace, cursors[trace]) for trace in episode.traces]
    reply = delta_pb2.RunReply(head=_head(episode), traces=counts)
    messages.append(delta_pb2.DeltaStream(reply=reply).SerializeToString())
    _check(episode, messages, joins)


@_thorough
@given(program=programs, joins=_joins, target_bytes=st.integers(1, 500) | st.just(1024 * 1024))
def test_streams_with_blocked_writes_assemble_to_their_source(
    program: Sequence[Operation], joins: list[bool], target_bytes: int
) -> None:
    episode = new_episode()
    streamer = DeltaStreamer(episode, target_bytes=target_bytes)
    messages: list[bytes] = []
    for operation in program:
        operation.apply(episode)
        if isinstance(operation, Flush) and (message := streamer.next_message()) is not None:
            assert streamer.next_message() is message, "an uncommitted message must be given again"
            if operation.write_ends:
                messages.append(message)
                streamer.commit()
    messages += streamer.final_messages(_head(episode))
    _check(episode, messages, joins)


def test_a_message_of_five_mebibytes_crosses_whole() -> None:
    episode = new_episode()
    NewTrace("agent", True, "simulated").apply(episode)
    episode.traces[0].add_node(Message.user("small"))
    episode.traces[0].add_node(Message.tool("é" * (5 * 1024 * 1024 // 2), "call-1"), parent=0)
    episode.traces[0].add_node(Message.assistant("small too"), [1, 2], parent=1)
    messages = list(DeltaStreamer(episode).final_messages(_head(episode)))
    assert [len(message) > 5 * 1024 * 1024 for message in messages] == [False, True, False]
    _check(episode, messages, [False])


def _check(episode: Episode, messages: Sequence[bytes], joins: Sequence[bool]) -> None:
    received = list(_rejoined(messages, joins))
    history = History()
    history.note(Asked, RUN)
    for data in messages:
        history.note(Passed, RUN, hop="worker", data=data)
    for data in received:
        history.note(Passed, RUN, hop="client", data=data)
    history.note(Ended, RUN, code="OK")
    oracle.ordered_without_gaps(history)
    oracle.reply_once_and_last(history)
    oracle.each_thing_once(history)
    oracle.relayed_verbatim(history)
    oracle.no_training_array_on_the_wire(history)

    assembly = EpisodeAssembly()
    for data in received:
        assembly.apply(data)
    for trace in episode.traces:
        preview = assembly.pending(trace.id)
        assert preview == (None if trace.pending is None else wire.pending(trace.pending))
    oracle.assembly_equals_source(assembly.finish(), _source(episode))


def _rejoined(messages: Sequence[bytes], joins: Sequence[bool]) -> Iterable[bytes]:
    """The same bytes, some neighbours laid end to end."""
    backlog = b""
    for data, join in zip(messages, itertools.cycle(joins), strict=False):
        backlog += data
        if not join:
            yield backlog
            backlog = b""
    if backlog:
        yield backlog


def _head(episode: Episode) -> episode_pb2.EpisodeHead:
    return wire.head(episode, task_json="{}", worker_instance="2" * 32, duration_seconds=1.5)


def _source(episode: Episode) -> episode_pb2.Episode:
    """The episode read as a whole, by its public attributes and without its journals."""
    return episode_pb2.Episode(head=_head(episode), traces=[_whole(trace) for trace in episode.traces])


def _whole(trace: Trace) -> episode_pb2.Trace:
    whole = episode_pb2.Trace(
        header=wire.header(trace),
        nodes=map(wire.node, trace.nodes),
        calls=map(wire.call, trace.calls),
        errors=map(wire.error, trace.errors),
        links=map(wire.link, trace.links),
        rewards={name: wire.reward(reward) for name, reward in trace.rewards.items()},
        metrics=dict(trace.metrics),
        info_json=trace.info.json_texts(),
    )
    changes = {type(change).__name__: change for change in trace.journal.entries}
    # Whether they were said at all stands in the journal alone.
    if "OkSet" in changes:
        whole.ok = trace.ok
    if "StopSet" in changes:
        whole.stop_condition = trace.stop_condition
    if "ToolsSet" in changes:
        whole.tools_json = trace.tools_json
    if trace.finished_at is not None:
        whole.finished_unix_nanos = changes["Finished"].unix_ns  # type: ignore[union-attr]
        assert abs(whole.finished_unix_nanos / 1e9 - trace.finished_at) < 1e-6
    return whole
