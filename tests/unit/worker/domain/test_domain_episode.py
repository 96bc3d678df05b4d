"""Episodes: trace ids, discarded attempts, errors, announcements."""

from __future__ import annotations

import gc
import logging
import weakref

import numpy as np
import pytest

from env_worker.domain import Episode, EpisodeError, Message, Trace


def make_episode() -> Episode:
    return Episode("e", "env", {"n": 1}, "request", "owner", "group")


def test_trace_ids_are_deterministic_and_never_used_twice() -> None:
    episode = make_episode()
    episode.new_trace(trace_id="trace-1")
    assert episode.new_trace().id == "trace-2"
    episode.discard_trace(episode.traces[-1])
    assert episode.new_trace("judge", trainable=False, model="m").id == "trace-3"
    assert [trace.id for trace in episode.traces] == ["trace-1", "trace-3"]
    for taken in ("trace-2", "trace-3", ""):
        with pytest.raises(ValueError, match="choose another"):
            episode.new_trace(trace_id=taken)


def test_a_trace_id_has_at_most_128_bytes() -> None:
    episode = make_episode()
    assert episode.new_trace(trace_id="\u00e4" * 64).id == "\u00e4" * 64
    with pytest.raises(ValueError, match="has 130 bytes, the limit is 128"):
        episode.new_trace(trace_id="\u00e4" * 65)


def test_ids_count_from_zero() -> None:
    episode = make_episode()
    assert [episode.new_trace().id for _ in range(3)] == ["trace-0", "trace-1", "trace-2"]


def test_a_new_trace_is_announced_before_it_has_content() -> None:
    episode = make_episode()
    trace = episode.new_trace()
    assert list(episode.take_touched()) == [trace]
    assert list(episode.take_touched()) == []


def test_a_trace_is_announced_once_until_it_is_taken() -> None:
    calls: list[None] = []
    episode = Episode("e", "env", {}, on_change=lambda: calls.append(None))
    trace = episode.new_trace()
    for number in range(5):
        trace.set_metric("m", number)
    assert (len(calls), list(episode.touched)) == (1, [trace])
    list(episode.take_touched())
    trace.set_metric("m", 9)
    assert len(calls) == 2


def test_a_discarded_trace_is_announced_as_such_and_then_never_again() -> None:
    episode = make_episode()
    trace = episode.new_trace()
    list(episode.take_touched())
    episode.discard_trace(trace)
    assert [(taken.id, taken.discarded) for taken in episode.take_touched()] == [("trace-0", True)]
    trace.add_node(Message.user("late"))
    trace.set_reward("r", 1.0)
    trace.info["x"] = 1
    trace.info.clear()
    trace.finish()
    episode.discard_trace(trace)
    assert (list(episode.touched), episode.traces, episode.reward) == ([], (), None)


def test_only_its_own_traces_can_be_discarded() -> None:
    with pytest.raises(ValueError, match="not one of episode 'e'"):
        make_episode().discard_trace(Trace("other"))


def test_a_listener_that_raises_does_not_break_the_environment(caplog: pytest.LogCaptureFixture) -> None:
    episode = make_episode()

    def broken() -> None:
        raise RuntimeError("listener")

    episode.on_change = broken
    with caplog.at_level(logging.ERROR):
        trace = episode.new_trace()
    assert "on_change of episode e raised" in caplog.text
    assert list(episode.touched) == [trace]


def test_an_error_makes_the_episode_not_ok() -> None:
    episode = make_episode()
    assert episode.ok
    error = EpisodeError("E", "m")
    episode.add_error(error)
    assert (episode.ok, episode.errors) == (False, (error,))
    with pytest.raises(TypeError, match="expected EpisodeError"):
        episode.add_error(ValueError())  # type: ignore[arg-type]


def test_finish_finishes_the_traces_once() -> None:
    episode = make_episode()
    trace = episode.new_trace()
    episode.finish()
    finished = (episode.finished_at, trace.finished_at)
    assert all(finished)
    episode.finish()
    assert (episode.finished_at, trace.finished_at) == finished


def test_reward_and_arrays_are_those_of_the_traces() -> None:
    episode = make_episode()
    assert episode.reward is None
    for value in (1.0, None, 0.5):
        trace = episode.new_trace()
        trace.set_reward("r", value)
        trace.add_node(Message.user("x"), [1], routed_experts=np.zeros((1, 2, 2), np.uint8))
    assert episode.reward == 1.5
    assert episode.array_bytes == 12
    episode.drop_arrays()
    assert episode.array_bytes == 0


def test_what_is_left_for_a_late_discard() -> None:
    episode = make_episode()
    episode.new_trace("a", trainable=False, model="m", trace_id="x").info["key"] = {"n": 1}
    episode.traces[0].add_node(Message.user("x"))
    episode.add_error(EpisodeError("E", "m"))
    episode.finish()
    rest = episode.without_nodes()
    head = (
        "id",
        "environment",
        "task",
        "request_id",
        "owner",
        "group_id",
        "ok",
        "errors",
        "started_at",
        "finished_at",
    )
    assert [getattr(rest, name) for name in head] == [getattr(episode, name) for name in head]
    (left,) = rest.traces
    assert (left.id, left.agent, left.trainable, left.model, dict(left.info), len(left.nodes)) == (
        "x", "a", False, "m", {"key": {"n": 1}}, 0,
    )  # fmt: skip


def test_a_dropped_episode_is_freed_without_the_collector() -> None:
    episode = Episode("0" * 32, "test", {})
    trace = episode.new_trace()
    trace.info["key"] = trace.add_node(Message.user("x"))
    trace.finish()
    freed = [weakref.ref(episode), weakref.ref(trace)]
    gc.disable()
    try:
        del episode, trace
        assert [reference() for reference in freed] == [None, None]
    finally:
        gc.enable()


def test_what_outlives_its_owner_can_still_be_written() -> None:
    trace = Episode("0" * 32, "test", {}).new_trace()
    trace.add_node(Message.user("x"))
    assert len(trace.journal.entries) == 1
    info = trace.info
    del trace
    info["key"] = 1
    del info["key"]
    assert not info
