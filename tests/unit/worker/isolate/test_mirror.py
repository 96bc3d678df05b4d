"""What a Reporter sends makes a Mirror's episode equal to the reporter's, at each step and in the end."""

from __future__ import annotations

import asyncio
import os
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings

from env_worker.delta.streamer import DeltaStreamer
from env_worker.domain import Episode, InvalidTaskError, Message
from env_worker.isolate.frames import encode
from env_worker.isolate.messages import Cancel, Ended, Grew, NodeArrays
from env_worker.isolate.mirror import Mirror
from env_worker.isolate.pickling import loads
from env_worker.isolate.reporter import Reporter
from tests.helpers.episode_view import episode_view
from tests.helpers.operations import Flush
from tests.helpers.strategies import new_episode, programs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.helpers.operations import Operation


def pickled(message: object) -> tuple[bytes, list[Any]]:
    """As it crosses to the worker: the pickle, and what is beside it."""
    head, *buffers = encode(message, plain=True)
    return bytes(head[12 + 8 * len(buffers) :]), buffers


class Pair:
    """A reporter's episode and its mirror, with what was sent in between."""

    def __init__(self) -> None:
        self.source, self.copy = new_episode(), new_episode()
        self.sent: list[Any] = []
        self.failures = 0
        self.ended: Ended | None = None
        self._mirror = Mirror(self.copy)
        self.reporter = Reporter(self.source, self._send, self._fail)

    def _send(self, message: object) -> None:
        self.sent.append(message)
        self.ended = self._mirror.apply(loads(*pickled(message)))

    def _fail(self) -> None:
        self.failures += 1

    def same(self) -> None:
        assert episode_view(self.copy) == episode_view(self.source)


@settings(max_examples=150)
@given(program=programs)
def test_any_program_is_mirrored_step_by_step(program: Sequence[Operation]) -> None:
    pair = Pair()
    streamer = DeltaStreamer(pair.copy, target_bytes=500)
    for operation in program:
        operation.apply(pair.source)
        assert [len(trace.journal.entries) for trace in pair.copy.traces] == [
            len(trace.journal.entries) for trace in pair.source.traces
        ]
        assert [trace.pending for trace in pair.copy.traces] == [t.pending for t in pair.source.traces]
        assert not any(node.array_bytes for trace in pair.copy.traces for node in trace.nodes)
        if isinstance(operation, Flush) and streamer.next_message() is not None:
            streamer.commit()
    pair.reporter.finish(None)
    assert pair.ended is not None
    assert pair.ended.error is None
    pair.same()


def test_a_node_crosses_once_however_often_history_is_rewritten() -> None:
    pair = Pair()
    trace = pair.source.new_trace()
    for number in range(5):
        trace.add_node(Message.user("x" * 1000))
        trace.info["number"] = number
        del trace.info["number"]
    grown = [message for message in pair.sent if isinstance(message, Grew)]
    assert sum(b"x" * 1000 in b"".join(encode(message)) for message in grown) == 5
    assert pair.copy.traces[0].journal.generation == 5
    pair.reporter.finish(None)
    pair.same()


def test_why_arrays_are_missing_crosses_as_it_is_in_the_end() -> None:
    pair = Pair()
    trace = pair.source.new_trace()
    trace.add_node(Message.user("text"), [1], holes={"routed_experts": "not yet"})
    trace.add_node(Message.user("text"), [1])
    trace.nodes[0].holes = {"routed_experts": "the engine gave none"}
    assert not pair.copy.traces[0].nodes[0].holes
    pair.reporter.finish(None)
    assert [dict(node.holes) for node in pair.copy.traces[0].nodes] == [
        {"routed_experts": "the engine gave none"},
        {},
    ]
    assert sum(isinstance(message, NodeArrays) for message in pair.sent) == 1
    pair.same()


@pytest.mark.parametrize("error", [ValueError("bad"), asyncio.CancelledError(), SystemExit(3)])
def test_what_was_raised_is_the_last_word(error: BaseException) -> None:
    pair = Pair()
    pair.source.new_trace()
    pair.reporter.finish(error)
    assert pair.ended is not None
    assert pair.ended.error is not None
    assert (pair.ended.error.type, pair.ended.error.message) == (type(error).__name__, str(error))
    assert pair.ended.error.phase == "environment"
    assert not pair.ended.invalid_task


def test_an_invalid_task_is_said_to_be_one() -> None:
    pair = Pair()
    pair.reporter.finish(InvalidTaskError("turns is -1"))
    assert pair.ended is not None
    assert pair.ended.invalid_task


def test_what_cannot_be_sent_fails_the_run_and_nothing_else() -> None:
    class Mine(Message):
        """A type of the environment's own."""

    pair = Pair()
    trace = pair.source.new_trace()
    trace.add_node(Mine("user", "text"))
    assert pair.failures == 1
    trace.add_node(Message.user("more"))
    assert pair.failures == 1
    pair.reporter.finish(None)
    assert pair.ended is not None
    assert pair.ended.error is not None
    assert pair.ended.error.type == "TypeError"
    assert "Mine, which only the environment's own process knows" in pair.ended.error.message
    assert len(pair.copy.traces[0].nodes) == 0


def test_texts_and_numbers_of_types_of_its_own_arrive_as_plain_ones() -> None:
    class Word(str):
        def __str__(self) -> str:
            return "not this"

    class Stop(str, Enum):  # noqa: UP042  # the older kind, whose str() is another
        DONE = "done"

    pair = Pair()
    trace = pair.source.new_trace(Word("agent"))
    trace.add_node(Message.user(Word("text")), [1])
    trace.set_stop(Stop.DONE)
    trace.set_reward(Word("score"), np.float64(0.5), weight=np.float32(2))
    pair.reporter.finish(None)
    assert not pair.failures
    pair.same()
    copy = pair.copy.traces[0]
    texts = [copy.agent, copy.nodes[0].message.content, copy.stop_condition, *copy.rewards]
    assert texts == ["agent", "text", "done", "score"]
    assert {type(text) for text in texts} == {str}


def test_the_head_is_mirrored_with_its_owner_and_group() -> None:
    pair = Pair()
    pair.source.owner, pair.source.group_id = "trainer-2", "g7"
    pair.source.new_trace()
    assert (pair.copy.owner, pair.copy.group_id) == ("trainer-2", "g7")


def test_a_forked_child_sends_nothing() -> None:
    pair = Pair()
    pair.reporter._pid = os.getpid() + 1  # type: ignore[misc]  # as a child of a fork finds it
    pair.source.new_trace()
    assert pair.sent == []


def test_what_no_reporter_sends_is_refused() -> None:
    mirror = Mirror(Episode("0" * 32, "random", {}))
    with pytest.raises(ValueError, match="sent a Cancel"):
        mirror.apply(Cancel())
    with pytest.raises(KeyError):
        mirror.apply(NodeArrays("trace-9", 0, None, None, None, {}))
