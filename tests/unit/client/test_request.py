"""What a caller gives becomes a RunRequest, or is refused before anything leaves."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import pytest
from envtrio.v1.env_service_pb2 import RunRequest, SamplingParams

from env_client import Endpoint, InvalidRequestError, InvalidTaskError, MessageTooLargeError
from env_client.request import (
    MAX_MESSAGE_BYTES,
    RunDefaults,
    build_request,
    checked_timeout,
    new_request_id,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

RUN = "0123456789abcdef0123456789abcdef"
NOTHING: Mapping[str, Any] = dict.fromkeys(
    ("env", "model", "endpoint", "sampling", "request_id", "group_id", "owner")
)


def built(task: Any = None, defaults: RunDefaults | None = None, **arguments: Any) -> RunRequest:
    chosen = {} if task is None else task
    return build_request(chosen, defaults or RunDefaults(), **{**NOTHING, **arguments})


def test_the_least_request() -> None:
    request = built()
    assert len(request.request_id) == 32
    assert request == RunRequest(request_id=request.request_id, protocol_generation=1, task_json="{}")


def test_ids_are_random() -> None:
    assert len({new_request_id() for _ in range(100)}) == 100


def test_the_call_goes_before_the_client() -> None:
    defaults = RunDefaults("env", "model", "http://default/v1", {"seed": 1, "top_k": 5}, "owner")
    request = built({}, defaults)
    assert (request.environment, request.owner, request.model.model) == ("env", "owner", "model")
    assert request.model.url == "http://default/v1"
    assert request.sampling == SamplingParams(seed=1, top_k=5)
    request = built(
        {}, defaults, env="other", model="m", endpoint=Endpoint("u"), sampling={}, owner="", request_id=RUN
    )
    assert (request.request_id, request.environment, request.owner) == (RUN, "other", "")
    assert (request.model.model, request.model.url) == ("m", "u")
    # Replaced as a whole.
    assert request.sampling == SamplingParams()


def test_endpoints() -> None:
    request = built(endpoint=Endpoint("http://e/v1", "vllm-chat", {"x-team": "rl"}, "ENGINE_KEY"))
    assert request.model.url == "http://e/v1"
    assert request.model.dialect == "vllm-chat"
    assert dict(request.model.headers) == {"x-team": "rl"}
    assert request.model.api_key_variable == "ENGINE_KEY"


def test_sampling_by_mapping_or_message() -> None:
    mapping = {
        "temperature": 0,
        "max_tokens": 5,
        "stop": "END",
        "seed": None,
        "min_tokens": 3,
        "guided": {"a": [1]},
    }
    params = built(sampling=mapping).sampling
    assert params.HasField("temperature")
    assert not params.HasField("seed")
    assert list(params.stop) == ["END"]
    assert dict(params.extra_json) == {"min_tokens": "3", "guided": '{"a": [1]}'}
    assert built(sampling=params).sampling == params
    assert list(built(sampling={"stop": ["a", "b"]}).sampling.stop) == ["a", "b"]


@pytest.mark.parametrize("name", ["logprobs", "top_logprobs", "top_logprobs_count"])
def test_the_number_of_top_logprobs_goes_by_the_names_that_engines_have_for_it(name: str) -> None:
    params = built(sampling={name: 3}).sampling
    assert (params.top_logprobs_count, dict(params.extra_json)) == (3, {})
    with pytest.raises(InvalidRequestError, match=r"how many|an integer from 0 to 4294967295"):
        built(sampling={name: "three"} if name == "top_logprobs_count" else {name: True})


@pytest.mark.parametrize("other", ["top_logprobs", "top_logprobs_count"])
def test_two_names_of_the_number_of_top_logprobs_may_not_contradict_each_other(other: str) -> None:
    for sampling in ({"logprobs": 4, other: 2}, {other: 2, "logprobs": 4}, {"logprobs": 0, other: 2}):
        with pytest.raises(InvalidRequestError, match=f"leave out one of logprobs, {other}$") as caught:
            built(sampling=sampling)
        assert str(next(iter(sampling.values()))) in str(caught.value)
        assert caught.value.metadata["field"] == f"sampling.{list(sampling)[1]}"
    for sampling in ({"logprobs": 4, other: 4}, {"logprobs": None, other: 4}, {"logprobs": 4, other: None}):
        assert built(sampling=sampling).sampling.top_logprobs_count == 4


@pytest.mark.parametrize("task", [{"n": 2**60, "s": "ünïcode", "deep": [{"a": None}]}, {"x": 1.5, "y": True}])
def test_tasks_cross_unchanged(task: dict[str, Any]) -> None:
    assert json.loads(built(task).task_json) == task


CIRCULAR: dict[str, Any] = {}
CIRCULAR["self"] = CIRCULAR


@pytest.mark.parametrize(
    ("task", "found"),
    [
        ([], "found a list"),
        ("{}", "found a str"),
        ({"x": math.nan}, "not JSON compliant"),
        ({"x": math.inf}, "not JSON compliant"),
        ({1: "a"}, "key 1 is a int"),
        ({"x": {1, 2}}, "set is not JSON serializable"),
        ({"x": "\ud800"}, "surrogates"),
        (CIRCULAR, "Circular"),
    ],
)
def test_what_is_no_task(task: Any, found: str) -> None:
    with pytest.raises(InvalidTaskError, match=found) as caught:
        built(task)
    assert "JSON object" in str(caught.value)
    assert caught.value.metadata["field"] == "task_json"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"request_id": "short"}, "request_id"),
        ({"request_id": RUN.upper()}, "request_id"),
        ({"request_id": 7}, "request_id"),
        ({"env": 7}, "env"),
        ({"env": "\ud800"}, "env"),
        ({"owner": b"\xff"}, "owner"),
        ({"group_id": 1.5}, "group_id"),
        ({"model": []}, "model"),
        ({"endpoint": 7}, "endpoint"),
        ({"endpoint": Endpoint("u", headers={"a": 1})}, "endpoint.headers"),  # type: ignore[dict-item]
        ({"endpoint": Endpoint("u", key_variable=1)}, "endpoint.key_variable"),  # type: ignore[arg-type]
        ({"sampling": 7}, "sampling"),
        ({"sampling": {"temperature": "hot"}}, "sampling.temperature"),
        ({"sampling": {"temperature": math.nan}}, "sampling.temperature"),
        ({"sampling": {"max_tokens": -1}}, "sampling.max_tokens"),
        ({"sampling": {"stop": 7}}, "sampling.stop"),
        ({"sampling": {"other": {1}}}, "sampling.other"),
        ({"sampling": {"extra_json": {}}}, "sampling.extra_json"),
    ],
)
def test_malformed_arguments(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        built(**arguments)
    assert caught.value.metadata["field"] == field
    assert "expected" in str(caught.value)
    assert RUN.upper() not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("temperature", "hot", "a number"),
        ("max_tokens", 2**32, "an integer from 0 to 4294967295"),
        ("max_tokens", 1.5, "an integer from 0 to 4294967295"),
        ("logprobs", "many", "an integer from 0 to 4294967295"),
        ("top_k", [], "an integer from -2147483648 to 2147483647"),
        ("seed", 2**63, "an integer from -9223372036854775808 to 9223372036854775807"),
        ("stop", [1], "a text, or a list of texts"),
        ("other", math.inf, "what JSON can say"),
        (7, 1, "a text as its name"),
    ],
)
def test_what_a_sampling_parameter_takes_is_said(name: Any, value: object, expected: str) -> None:
    with pytest.raises(InvalidRequestError, match=f", expected {re.escape(expected)}; mend"):
        built(sampling={name: value})


def test_every_sampling_parameter_says_what_it_takes() -> None:
    for name in set(SamplingParams.DESCRIPTOR.fields_by_name) - {"extra_json"}:
        with pytest.raises(InvalidRequestError, match=r"expected (a|an) "):
            built(sampling={name: object()})


def test_too_big_a_request_names_its_biggest_field() -> None:
    with pytest.raises(MessageTooLargeError, match=f"limit of {MAX_MESSAGE_BYTES}: make task_json") as caught:
        built({"data": "x" * MAX_MESSAGE_BYTES}, request_id=RUN)
    assert caught.value.metadata["field"] == "task_json"
    assert caught.value.metadata["limit"] == str(MAX_MESSAGE_BYTES)
    assert caught.value.request_id == RUN


def test_timeouts() -> None:
    assert checked_timeout(None) is None
    assert checked_timeout(math.inf) is None
    assert checked_timeout(1.5) == 1.5
    for value in (-1, math.nan):
        with pytest.raises(InvalidRequestError, match="0 or more seconds"):
            checked_timeout(value)


@pytest.mark.parametrize("key", ["sk-ant-0123", "two words", "x" * 200])
def test_a_key_in_the_place_of_its_variables_name_stays_here(key: str) -> None:
    with pytest.raises(InvalidRequestError, match="no name of an environment variable") as refused:
        built(endpoint=Endpoint("http://e/v1", key_variable=key))
    assert key not in str(refused.value)


def test_further_keys_of_the_engine_stand_beside_the_others() -> None:
    with pytest.raises(InvalidRequestError, match="beside the others"):
        built(sampling={"extra": {"priority": 1}})
