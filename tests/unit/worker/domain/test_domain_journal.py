"""The journal: replayed it is the trace, and a reader sees a consistent prefix at any moment."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env_worker.domain import Episode
from tests.unit.worker.domain.journal_reader import Reader, apply, replay, state

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


NAMES = st.sampled_from(["a", "b", "c"])
NUMBERS = st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.just("node"), NUMBERS, st.booleans()),
    st.tuples(st.just("call"), NUMBERS),
    st.tuples(st.just("link"), NUMBERS, NUMBERS),
    st.tuples(st.just("error"), NUMBERS),
    st.tuples(st.just("reward"), NAMES, st.none() | NUMBERS),
    st.tuples(st.just("metric"), NAMES, NUMBERS),
    st.tuples(st.just("info"), NAMES, NUMBERS),
    st.tuples(st.just("ok"), st.booleans()),
    st.tuples(st.just("stop"), NAMES),
    st.tuples(st.just("tools"), NAMES),
    st.tuples(st.just("pending"), NUMBERS, NUMBERS),
    st.tuples(st.just("clear"), NAMES),
    st.tuples(st.just("remove"), st.sampled_from(["reward", "metric", "info", "infos"]), NAMES),
    st.tuples(st.just("rewrite"), NUMBERS),
    st.tuples(st.just("finish")),
    st.tuples(st.just("new")),
    st.tuples(st.just("discard")),
    st.tuples(st.just("read")),
)

EVERY_KIND: list[tuple[Any, ...]] = [
    ("tools", "a"), ("pending", 0, 1), ("node", 0, False), ("node", 1, True), ("call", 1), ("link", 1, 0),
    ("pending", 2, 2), ("error", 1), ("reward", "a", 1), ("reward", "b", None), ("metric", "a", 2),
    ("info", "a", 1), ("info", "b", 2), ("remove", "info", "a"), ("remove", "reward", "a"), ("node", 2, True),
    ("remove", "metric", "a"), ("rewrite", 2), ("new",), ("node", 0, True), ("discard",), ("node", 1, True),
    ("info", "c", 1), ("remove", "infos", "c"), ("ok", False), ("stop", "a"), ("finish",), ("info", "a", 3),
]  # fmt: skip


@given(st.lists(STEPS, max_size=40))
def test_replaying_the_journal_from_nothing_equals_the_trace(steps: list[tuple[Any, ...]]) -> None:
    episode = Episode("e", "env", {})
    episode.new_trace()
    for step in steps:
        apply(episode, step)
        for trace in episode.traces:
            assert replay(trace.journal.entries) == state(trace)


@given(st.lists(STEPS, max_size=40), st.booleans())
def test_a_reader_between_any_two_steps_misses_nothing(steps: list[tuple[Any, ...]], eager: bool) -> None:
    episode = Episode("e", "env", {})
    reader = Reader(episode)
    if eager:  # reads inside the writer's own call, at each announcement
        episode.on_change = reader.drain
    episode.new_trace()
    for step in steps:
        apply(episode, step)
        if step == ("read",):
            reader.drain()
    reader.check_complete()


def traced(work: Callable[[], None], at_point: Callable[[int], None]) -> int:
    """Call `at_point` before each bytecode that `work` executes in the domain or in `drain`; their count."""
    points = 0

    def on_event(frame: FrameType, event: str, _: object) -> Any:
        nonlocal points
        code = frame.f_code
        if "env_worker/domain/" not in code.co_filename.replace("\\", "/") and code.co_name != "drain":
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            at_point(points)
            points += 1
        return on_event

    before = sys.gettrace()
    sys.settrace(on_event)
    try:
        work()
    finally:
        sys.settrace(before)
    return points


def write_interrupted(steps: list[tuple[Any, ...]], interrupt: Callable[[int], bool]) -> int:
    """Run `steps`; let the reader in before each bytecode of theirs that `interrupt` picks; their count."""
    episode = Episode("e", "env", {})
    reader = Reader(episode)

    reading = False

    def read() -> None:
        nonlocal reading
        if not reading:  # there is one reader: it does not interrupt itself
            reading = True
            reader.drain()
            reading = False

    def write() -> None:
        episode.new_trace()
        for step in steps:
            read() if step == ("read",) else apply(episode, step)

    points = traced(write, lambda point: read() if interrupt(point) else None)
    reader.check_complete()
    return points


def read_interrupted(step: tuple[Any, ...], interrupt: Callable[[int], bool]) -> int:
    """Let a reader drain, and do `step` before each bytecode of its that `interrupt` picks; their count."""
    episode = Episode("e", "env", {})
    reader = Reader(episode)
    for first in (("new",), ("node", 0, True), ("info", "a", 1)):
        episode.new_trace() if first == ("new",) else apply(episode, first)
    points = traced(reader.drain, lambda point: apply(episode, step) if interrupt(point) else None)
    reader.check_complete()
    return points


def test_a_reader_at_every_bytecode_sees_a_consistent_prefix() -> None:
    assert write_interrupted(EVERY_KIND, lambda _: True) > 1000


@pytest.mark.parametrize(
    "steps",
    [
        [("metric", "a", 1)],
        [("info", "a", 1), ("remove", "info", "a")],
        [("new",), ("discard",)],
        [("node", 0, False), ("info", "a", 1), ("read",), ("metric", "a", 1), ("remove", "info", "a")],
    ],
)
def test_a_reader_at_any_one_bytecode_of_a_write_misses_nothing(steps: list[tuple[Any, ...]]) -> None:
    for point in range(write_interrupted(steps, lambda _: False)):
        write_interrupted(steps, point.__eq__)


@pytest.mark.parametrize(
    "step", [("metric", "a", 1), ("remove", "info", "a"), ("node", 0, True), ("finish",)]
)
def test_a_write_at_any_one_bytecode_of_the_reader_is_not_missed(step: tuple[Any, ...]) -> None:
    points = read_interrupted(step, lambda _: False)
    assert points > 30
    for point in range(points):
        read_interrupted(step, point.__eq__)


@settings(max_examples=10)
@given(st.lists(STEPS, min_size=5, max_size=15), st.integers(1, 50))
def test_a_reader_at_regular_bytecodes_misses_nothing(steps: list[tuple[Any, ...]], stride: int) -> None:
    write_interrupted(steps, lambda now: now % stride == 0)


def test_a_reader_in_another_thread_misses_nothing() -> None:
    changed = threading.Event()
    episode = Episode("e", "env", {}, on_change=changed.set)
    reader = Reader(episode)
    done = threading.Event()

    def write() -> None:
        episode.new_trace()
        for _ in range(10):
            for step in EVERY_KIND:
                apply(episode, step)
            episode.new_trace()
        done.set()
        changed.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    writer = threading.Thread(target=write)
    try:
        writer.start()
        while not done.is_set():
            assert changed.wait(30)
            changed.clear()
            reader.drain()
        writer.join(30)
    finally:
        sys.setswitchinterval(interval)
    reader.check_complete()
