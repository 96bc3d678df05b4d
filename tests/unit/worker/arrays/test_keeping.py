"""How an episode is kept: all of it or nothing."""

from __future__ import annotations

import errno
import gc
import json
import os
import weakref
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
import pytest

from env_worker.arrays.errors import (
    ArrayBudgetExceededError,
    ArrayKeepError,
    ArraysIncompleteError,
    FieldIncompleteError,
)
from env_worker.arrays.holdings import ArrayHoldings
from env_worker.arrays.layout import TraceLayout
from env_worker.arrays.reference import MAX_REFERENCE_BYTES
from env_worker.arrays.store import Released
from env_worker.domain import TRAINING_ARRAY_FIELDS, Episode, Message
from tests.helpers.array_episodes import (
    HOME,
    PAGE,
    SMALL,
    add_answer,
    body_of,
    expected_body,
    experts,
    is_empty,
    keys,
    new_episode,
    new_store,
    open_segments,
    references,
)

if TYPE_CHECKING:
    from pathlib import Path

    from env_worker.arrays.writer import Put


def test_every_branch_is_kept_and_named_by_a_reference() -> None:
    store, episode = new_store(), new_episode(traces=2, branches=3)
    store.keep(episode)
    found = references(episode)
    assert len({reference["key"] for reference in found}) == len(found) == 6
    for reference in found:
        assert (reference["instance"], reference["address"]) == HOME
        assert (reference["tokens"], reference["sampled"]) == (5, 3)
        body = expected_body(episode, reference)
        with store.open(reference["key"], (), 0, None) as fetch:
            assert (fetch.token_start, fetch.token_end, fetch.spilled) == (0, 5, False)
            assert fetch.cut.body_bytes == len(body) == sum(a["bytes"] for a in reference["arrays"].values())
            assert fetch.cut.body_crc32c == google_crc32c.value(body)
            assert b"".join(fetch.pieces(7)) == body
    assert (store.held_arrays, store.held_array_bytes) == (1, 2 * SMALL)


def test_traces_that_are_not_trainable_or_empty_are_left_alone() -> None:
    store, episode = new_store(), Episode("e" * 32, "test", {})
    judge = episode.new_trace(trainable=False)
    judge.add_node(Message("user"), range(2), routed_experts=experts(2))
    empty = episode.new_trace()
    store.keep(episode)
    assert "training_arrays" not in judge.info
    assert empty.info["training_arrays"] == []
    assert is_empty(store)
    assert store.stats().kept_episodes == 1
    store.keep(episode)  # nothing of it is held, so it may come again


def test_an_episode_that_is_not_ok_is_kept() -> None:
    store, episode = new_store(), new_episode()
    episode.ok = False
    store.keep(episode)
    assert body_of(store, keys(episode)[0])


def test_after_keep_nothing_of_the_nodes_is_referenced_nor_can_change_what_is_kept() -> None:
    store, episode = new_store(), Episode("e" * 32, "test", {})
    trace = episode.new_trace()
    array = experts(3)
    gone = weakref.ref(array)
    body = array.tobytes()
    trace.add_node(Message("assistant"), range(3), sampled=True, routed_experts=array)
    store.keep(episode)
    array[:] = 0
    assert body_of(store, keys(episode)[0]) == body
    del array
    episode.drop_arrays()
    gc.collect()
    assert gone() is None


def test_what_had_been_repaired_is_kept_as_it_is_then() -> None:
    store, episode = new_store(), new_episode()
    trace = episode.traces[0]
    trace.repair_routing(0, 1, np.full((1, 2, 2), 300, np.uint16))
    store.keep(episode)
    [reference] = references(episode)
    assert reference["arrays"]["routed_experts"]["dtype"] == "<u2"
    with store.open(reference["key"], ["routed_experts"], 1, 2) as fetch:
        assert np.frombuffer(b"".join(fetch.pieces()), "<u2").tolist() == [300] * 4


def test_an_episode_is_kept_once() -> None:
    store, episode = new_store(), new_episode()
    store.keep(episode)
    with pytest.raises(ValueError, match="of episode eeeeeeee are held already"):
        store.keep(episode)
    assert (store.held_arrays, store.held_array_bytes) == (1, SMALL)


def test_what_does_not_fit_is_spilled_trace_by_trace_and_leaves_no_name(tmp_path: Path) -> None:
    store = new_store(memory_bytes=SMALL, spill_dir=tmp_path)
    episode = new_episode(traces=2)
    store.keep(episode)
    spilled = []
    for reference in references(episode):
        with store.open(reference["key"], (), 0, None) as fetch:
            spilled.append(fetch.spilled)
            assert b"".join(fetch.pieces()) == expected_body(episode, reference)
            assert fetch.offer() is not None
    assert spilled == [False, True]
    assert os.listdir(tmp_path) == []
    stats = store.stats()
    assert (stats.held_memory_bytes, stats.held_spill_bytes, stats.held_bytes) == (SMALL, SMALL, 2 * SMALL)
    assert (stats.spilled_episodes, stats.spilled_bytes, stats.kept_bytes) == (1, SMALL, 2 * SMALL)


def test_an_episode_that_does_not_fit_is_refused_whole_and_evicts_nothing() -> None:
    store, first = new_store(memory_bytes=2 * SMALL), new_episode("1")
    store.keep(first)
    before = open_segments()
    second = new_episode("2", traces=2)
    with pytest.raises(ArrayBudgetExceededError, match="--array-memory-bytes"):
        store.keep(second)
    assert "training_arrays" not in second.traces[0].info
    assert (store.held_arrays, store.held_array_bytes, open_segments()) == (1, SMALL, before)
    assert store.stats().failed_keeps == 1
    store.discard(second.id)
    assert body_of(store, keys(first)[0])


def test_repaired_rows_are_kept_without_a_copy_of_the_others() -> None:
    store, episode = new_store(), new_episode()
    trace = episode.new_trace()
    node = trace.add_node(Message("user"), range(1000), routed_experts=np.ones((1000, 2, 2), np.uint8))
    trace.repair_routing(node, 999, np.full((2, 2), 7))
    routing = trace.nodes[node].routing
    store.keep(episode)
    assert routing is not None
    assert len(routing.parts[1]) == 1
    [reference] = trace.info["training_arrays"]
    assert body_of(store, reference["key"]) == b"\1" * 3996 + b"\7" * 4


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.ENOMEM, errno.EIO])
@pytest.mark.parametrize("call", ["memfd_create", "pwritev", "posix_fallocate"])
def test_a_system_without_room_is_a_clear_error_and_nothing_is_left(
    call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of three traces, of which one was written."""
    store = new_store(memory_bytes=2 * SMALL, spill_dir=tmp_path)
    before, real, calls = open_segments(), getattr(os, call), []

    def refuse(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2 or call == "posix_fallocate":
            raise OSError(number, os.strerror(number))
        return real(*arguments)

    monkeypatch.setattr(os, call, refuse)
    where = "the spill folder" if call == "posix_fallocate" else "memory"
    with pytest.raises(OSError, match=f"cannot be written to {where}.*{os.strerror(number)}; ") as error:
        store.keep(new_episode(traces=3))
    assert error.value.errno == number
    assert is_empty(store)
    assert open_segments() == before
    assert os.listdir(tmp_path) == []


def test_whatever_raises_in_the_midst_of_it_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store, before, write, calls = new_store(), open_segments(), TraceLayout.write, []

    def broken(layout: TraceLayout, put: Put) -> None:
        calls.append(layout)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write(layout, put)

    monkeypatch.setattr(TraceLayout, "write", broken)
    episode = new_episode(traces=3)
    with pytest.raises(KeyboardInterrupt):
        store.keep(episode)
    assert is_empty(store)
    assert open_segments() == before
    store.discard(episode.id)
    store.keep(episode)


@pytest.mark.parametrize("traces", [0, 2])
def test_a_keep_that_comes_too_late_leaves_nothing(traces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store, before = new_store(), open_segments()

    def refuse(*_: Any) -> None:
        raise ArrayKeepError("closed")

    monkeypatch.setattr(ArrayHoldings, "kept", refuse)
    with pytest.raises(ArrayKeepError):
        store.keep(new_episode(traces=traces))
    assert is_empty(store)
    assert open_segments() == before


def test_strict_refuses_a_hole_and_says_which() -> None:
    episode = new_episode()
    episode.traces[0].nodes[0].routed_experts = None
    store = new_store(strict=True)
    with pytest.raises(
        ArraysIncompleteError, match=r"routed_experts of trace 'trace-0' .*--array-strict.*node 0"
    ):
        store.keep(episode)
    assert is_empty(store)
    new_store(strict=True, fields=["top_logprobs"]).keep(episode)


def test_holes_are_counted_by_trace_and_never_given_out() -> None:
    store, episode = new_store(), new_episode(traces=2, branches=2)
    episode.traces[0].nodes[0].routed_experts = None
    store.keep(episode)
    assert store.stats().incomplete_fields == {"routed_experts": 1}
    holed, whole = references(episode)[0], references(episode)[2]
    assert "node 0" in holed["incomplete"]["routed_experts"]
    with pytest.raises(FieldIncompleteError, match=r"routed_experts.*node 0") as error:
        store.open(holed["key"], ["routed_experts"], 0, None)
    assert error.value.field == "routed_experts"
    assert "node 0" in error.value.hole
    with store.open(holed["key"], (), 0, None) as fetch:
        assert "routed_experts" not in [array.name for array in fetch.cut.arrays]
    with store.open(whole["key"], (), 0, None) as fetch:
        assert fetch.cut.arrays[0].name == "routed_experts"


def test_a_kind_of_hole_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    store = new_store()
    for number in range(4):
        episode = new_episode(str(number), branches=1 + number)
        if number:
            episode.traces[0].nodes[0].routed_experts = None
        store.keep(episode)
    [told] = [record.getMessage() for record in caplog.records]
    assert "episode=eeeeeeee trace=trace-0 kept with a hole: routed_experts is not served" in told
    assert "node 0 of 2 tokens has no routed_experts" in told
    assert "envtrio_arrays_incomplete_fields_total" in told
    absent = Episode("f" * 32, "test", {})
    absent.new_trace().add_node(Message("assistant"), range(3), sampled=True)
    store.keep(absent)
    assert len(caplog.records) == 4, "one for each field: this reason is another"


def test_an_engines_reasons_are_in_the_reference_however_long() -> None:
    store, episode = new_store(), Episode("e" * 32, "test", {})
    trace = episode.new_trace()
    holes = {field: f"{field} “{'é' * 480}”" for field in TRAINING_ARRAY_FIELDS}
    trace.add_node(Message("assistant"), range(3), sampled=True, holes=holes)
    store.keep(episode)
    [reference] = references(episode)
    assert len(json.dumps(reference)) <= MAX_REFERENCE_BYTES
    for field, told in reference["incomplete"].items():
        assert told.startswith(f"absent: no node of the trace has {field}: {field} “é")
    with pytest.raises(FieldIncompleteError, match="routed_experts: routed_experts “é") as error:
        store.open(reference["key"], ["routed_experts"], 0, None)
    assert error.value.hole.endswith("”"), "whole"


def test_a_trace_without_any_array_still_says_why() -> None:
    store, episode, before = new_store(), Episode("e" * 32, "test", {}), open_segments()
    episode.new_trace().add_node(Message("assistant"), range(3), sampled=True)
    store.keep(episode)
    [reference] = references(episode)
    assert (reference["arrays"], len(reference["incomplete"])) == ({}, 3)
    with pytest.raises(FieldIncompleteError, match="absent"):
        store.open(reference["key"], ["sampling_mask"], 0, None)
    with store.open(reference["key"], (), 0, None) as fetch:
        assert (list(fetch.pieces()), fetch.offer()) == ([], None)
    assert open_segments() == before
    assert store.release([reference["key"]]) == Released(1, 0, PAGE)
    assert is_empty(store)


def test_one_token_and_none() -> None:
    store, episode = new_store(), Episode("e" * 32, "test", {})
    trace = episode.new_trace()
    root = trace.add_node(Message("user"))
    add_answer(trace, root, 1)
    add_answer(trace, root, 0)
    store.keep(episode)
    one, none = references(episode)
    assert (one["tokens"], none["tokens"]) == (1, 0)
    assert body_of(store, one["key"]) == expected_body(episode, one)
    assert body_of(store, none["key"]) == b""
