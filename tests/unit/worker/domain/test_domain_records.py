"""Records, sampling parameters, info values: finite, encodable, or refused with the name and the limit."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_worker.domain import (
    Call,
    EpisodeError,
    InvalidTaskError,
    Link,
    Message,
    Reward,
    SamplingParams,
    Trace,
    WeightVersionSpan,
)
from env_worker.domain.records import MAX_ERROR_TEXT

NOT_FINITE = [float("nan"), float("inf"), float("-inf"), 10**400]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.parametrize("value", NOT_FINITE)
def test_not_finite_numbers_are_refused(value: float) -> None:
    for make in (
        lambda: Reward(value),
        lambda: Reward(None, value),
        lambda: Trace("t").set_metric("m", value),
        lambda: Trace("t").set_reward("r", 1.0, value),
        lambda: SamplingParams(temperature=value),
        lambda: Call(duration_seconds=value),
    ):
        with pytest.raises(ValueError, match="expected a finite number"):
            make()


def test_rewards_become_floats() -> None:
    reward = Reward(np.float32(0.5), 2)  # type: ignore[arg-type]
    assert (type(reward.value), type(reward.weight)) == (float, float)
    with pytest.raises(TypeError, match="str, expected a number"):
        Reward("1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt_tokens": -1}, "prompt_tokens is -1"),
        ({"cached_tokens": -2}, "cached_tokens is -2"),
        ({"duration_seconds": -0.5}, "duration_seconds is -0.5"),
        ({"attempt": 0}, "attempt is 0"),
        ({"model": "\ud800"}, "call's model holds the lone surrogate"),
    ],
)
def test_calls_are_checked(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Call(**fields)


def test_spans_and_links_are_checked() -> None:
    spans: Any = [WeightVersionSpan("7", 0, 3)]
    assert Call(weight_versions=spans).weight_versions == tuple(spans)
    with pytest.raises(ValueError, match=r"span is 3\.\.2"):
        WeightVersionSpan("7", 3, 2)
    with pytest.raises(ValueError, match="node -1 to node 0"):
        Link(-1, 0, "k")


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_errors_are_recorded_whatever_they_hold() -> None:
    try:
        raise InvalidTaskError("bad \ud800 " + "x" * MAX_ERROR_TEXT)
    except InvalidTaskError as error:
        record = EpisodeError.from_exception(error, "reset")
    assert (record.type, record.phase) == ("InvalidTaskError", "reset")
    assert record.message.startswith("bad ? xxx")
    assert record.message.endswith("(6 characters more)")
    assert len(record.traceback) == MAX_ERROR_TEXT
    assert record.traceback.endswith("x\n")
    assert "RuntimeError" in EpisodeError.from_exception(Silent()).message


def test_sampling_params_hold_what_was_given() -> None:
    params = SamplingParams(temperature=0.7, top_k=-1, stop=["a"], extra={"guided": {"x": 1}})  # type: ignore[arg-type]
    assert params.stop == ("a",)
    assert params.as_dict() == {"temperature": 0.7, "top_k": -1, "stop": ["a"], "guided": {"x": 1}}
    assert SamplingParams(stop="end").stop == ("end",)  # type: ignore[arg-type]
    assert SamplingParams().as_dict() == {}
    assert pickle.loads(pickle.dumps(params)) == params


@pytest.mark.parametrize(
    ("fields", "error", "reason"),
    [
        ({"top_p": 1.5}, ValueError, "top_p is 1.5, expected 0.0 to 1.0"),
        ({"max_tokens": 0}, ValueError, "max_tokens is 0, expected 1 to"),
        ({"top_k": 1.5}, TypeError, "top_k is 1.5, expected an integer"),
        ({"seed": True}, TypeError, "seed is True, expected an integer"),
        ({"temperature": "hot"}, TypeError, "temperature is of type str"),
        ({"extra": {"top_p": 1}}, ValueError, "'top_p' has a typed parameter"),
        ({"extra": {"a": {1}}}, TypeError, "extra sampling key 'a'"),
    ],
)
def test_sampling_params_are_checked(fields: dict[str, Any], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        SamplingParams(**fields)


@given(values)
def test_info_reads_back_what_was_set(value: Any) -> None:
    info = Trace("t").info
    info["key"] = value
    assert info["key"] == value
    assert json.loads(info.json_texts()["key"]) == value


def test_info_values_are_copies() -> None:
    info = Trace("t").info
    info["list"] = mine = [1]
    mine.append(2)
    info["list"].append(3)
    assert info == {"list": [1]}
    assert repr(info) == "{'list': [1]}"


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (float("nan"), ValueError),
        ([float("inf")], ValueError),
        ("\ud800", ValueError),
        ({"\udfff": 1}, ValueError),
        ({1, 2}, TypeError),
        (np.float32(1), TypeError),
        (object(), TypeError),
        ({(1, 2): 3}, TypeError),
    ],
)
def test_info_refuses_what_is_not_json_and_keeps_the_old_value(value: object, error: type[Exception]) -> None:
    trace = Trace("t")
    trace.info["key"] = 1
    with pytest.raises(error, match=r"info\['key'\]"):
        trace.info["key"] = value
    assert (trace.info["key"], len(trace.journal.entries)) == (1, 1)


def test_info_refuses_cycles_and_keys_that_are_not_text() -> None:
    info = Trace("t").info
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(ValueError, match="Circular"):
        info["key"] = cycle
    with pytest.raises(TypeError, match="info key 1"):
        info[1] = 1  # type: ignore[index]
    with pytest.raises(KeyError):
        del info["key"]
    assert ("key" in info, list(info), len(info)) == (False, [], 0)


@pytest.mark.parametrize("value", [-1.0, -1e18, 1_700_000_000_000.0, 1e18])
def test_times_that_the_wire_cannot_hold_are_refused_where_they_are_written(value: float) -> None:
    for make in (
        lambda: Call(started_at=value),
        lambda: EpisodeError("E", "m", occurred_at=value),
        lambda: Trace("t").add_node(Message.user("x"), created_at=value),
    ):
        with pytest.raises(ValueError, match=r"expected unix seconds .* not milliseconds"):
            make()


def test_durations_that_the_wire_cannot_hold_are_refused() -> None:
    with pytest.raises(ValueError, match=r"duration_seconds is 1e\+300, expected 0 to"):
        Call(duration_seconds=1e300)


def test_a_reward_whose_product_with_its_weight_is_no_double_is_refused() -> None:
    with pytest.raises(ValueError, match="beyond what a double holds"):
        Trace("t").set_reward("r", 1e308, 10.0)
    assert Reward(1e308, 1.0).value == 1e308
