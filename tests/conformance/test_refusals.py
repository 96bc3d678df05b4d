"""Requests that cannot be carried out are refused by name, and have no effect."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.history import EnvironmentBegan, KeepBegan
from tests.helpers.stub_client import MIB, new_id

if TYPE_CHECKING:
    from tests.helpers.stub_client import Outcome, StubClient

FOREVER = {"script": [["trace"], ["say", 1], ["forever"]]}


def expect(outcome: Outcome, code: str, reason: str, *words: str) -> None:
    assert (outcome.code, outcome.reason) == (code, reason), outcome
    for word in words:
        assert word in outcome.message
    assert not outcome.messages


@pytest.mark.parametrize(
    "task",
    [
        "",
        " ",
        "[]",
        "null",
        "1",
        '"text"',
        "{",
        '{"seed": NaN}',
        '{"seed": Infinity}',
        "{'seed': 1}",
        "{} {}",
    ],
)
async def test_a_task_has_to_be_a_json_object(client: StubClient, task: str) -> None:
    expect(await client.run(task), "INVALID_ARGUMENT", "INVALID_TASK", "task")


@pytest.mark.parametrize(
    ("task", "key"),
    [
        ({"turns": -1}, "turns"),
        ({"turns": 0}, "turns"),
        ({"turns": 10**9}, "turns"),
        ({"turns": 10**400}, "turns"),
        ({"turns": True}, "turns"),
        ({"turns": 1.5}, "turns"),
        ({"turns": "3"}, "turns"),
        ({"turns": None}, "turns"),
        ({"tokens_per_turn": 10**12}, "tokens_per_turn"),
        ({"tokens_per_turn": -5}, "tokens_per_turn"),
        ({"turns": 10_000, "tokens_per_turn": 1_000_000}, "tokens"),
        ({"turns": 1000, "tokens_per_turn": 10_000, "layers": 512, "top_k": 64}, "bytes"),
        ({"layers": -1}, "layers"),
        ({"top_k": 10**6}, "top_k"),
        ({"turn_seconds": -0.1}, "turn_seconds"),
        ({"turn_seconds": 1e300}, "turn_seconds"),
        ({"branches": 0}, "branches"),
        ({"branches": 11, "turns": 10}, "branches"),
        ({"fail_at_turn": -1}, "fail_at_turn"),
        ({"no_such_key": 1}, "no_such_key"),
    ],
)
async def test_a_task_has_to_make_sense_to_its_environment(
    client: StubClient, task: dict[str, Any], key: str
) -> None:
    expect(await client.run(task), "INVALID_ARGUMENT", "INVALID_TASK", key)


@pytest.mark.parametrize(
    "request_id", ["", "abc", "F" * 32, "g" * 32, "0" * 33, "0" * 31, "0" * 32 + "\n", "é" * 16]
)
async def test_a_request_id_has_to_be_one(client: StubClient, request_id: str) -> None:
    outcome = await client.run({}, request_id=request_id)
    expect(outcome, "INVALID_ARGUMENT", "INVALID_REQUEST_ID", "request_id")
    assert (await client.cancel(request_id)) == "INVALID_ARGUMENT INVALID_REQUEST_ID"


@pytest.mark.parametrize("generation", [0, 2, 4294967295])
async def test_another_generation_is_refused(client: StubClient, generation: int) -> None:
    outcome = await client.run({}, protocol_generation=generation)
    expect(outcome, "FAILED_PRECONDITION", "PROTOCOL_GENERATION", str(generation), "1")
    assert outcome.metadata["ours"] == "1"
    assert outcome.metadata["theirs"] == str(generation)
    cancelled = await client.cancel(new_id(), protocol_generation=generation)
    assert cancelled == "FAILED_PRECONDITION PROTOCOL_GENERATION"


async def test_an_environment_has_to_be_served(client: StubClient) -> None:
    outcome = await client.run({}, environment="no-such")
    expect(outcome, "NOT_FOUND", "ENVIRONMENT_NOT_FOUND", "no-such", "synthetic")
    expect(await client.run({}, environment="os:system"), "NOT_FOUND", "ENVIRONMENT_NOT_FOUND")


async def test_an_environment_has_to_be_named_where_there_are_two(client: StubClient) -> None:
    expect(await client.run({}, environment=""), "INVALID_ARGUMENT", "INVALID_REQUEST", "environment")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"owner": "o" * 257}, "owner"),
        ({"group_id": "é" * 129}, "group_id"),
        ({"session_id": "not an id"}, "session_id"),
        ({"sampling": {"temperature": -1.0}}, "temperature"),
        ({"sampling": {"temperature": math.nan}}, "temperature"),
        ({"sampling": {"top_p": 0.0}}, "top_p"),
        ({"sampling": {"top_p": math.inf}}, "top_p"),
        ({"sampling": {"top_k": 0}}, "top_k"),
        ({"sampling": {"min_p": 1.5}}, "min_p"),
        ({"sampling": {"max_tokens": 0}}, "max_tokens"),
        ({"sampling": {"presence_penalty": 3.0}}, "presence_penalty"),
        ({"sampling": {"frequency_penalty": -3.0}}, "frequency_penalty"),
        ({"sampling": {"repetition_penalty": 0.0}}, "repetition_penalty"),
        ({"sampling": {"extra_json": {"key": "{"}}}, "key"),
    ],
)
async def test_every_field_has_its_range(client: StubClient, fields: dict[str, Any], field: str) -> None:
    outcome = await client.run({}, **fields)
    expect(outcome, "INVALID_ARGUMENT", "INVALID_REQUEST", field)
    assert field in outcome.metadata["field"]


@pytest.mark.parametrize(
    "model",
    [
        {"url": "http://engine.invalid/v1"},
        {"api_key_variable": "HOME"},
        {"headers": {"authorization": "Bearer token"}},
        {"headers": {"proxy-anything": "1"}},
    ],
)
async def test_only_listed_endpoints_are_asked(client: StubClient, model: dict[str, Any]) -> None:
    outcome = await client.run({}, model=model)
    assert outcome.code == "INVALID_ARGUMENT"
    assert outcome.reason in ("ENDPOINT_NOT_ALLOWED", "INVALID_REQUEST")
    assert not outcome.messages


async def test_a_request_id_names_one_run_only(client: StubClient) -> None:
    run = client.start(FOREVER, environment="scripted")
    await run.next()
    outcome = await client.run({}, request_id=run.run)
    expect(outcome, "ALREADY_EXISTS", "DUPLICATE_REQUEST_ID", run.run[:8])
    assert run.run not in outcome.message  # a request_id is a capability
    assert await client.cancel(run.run) == "ABORTED"
    first = await run.finish()
    assert (first.code, first.reason) == ("CANCELLED", "CANCEL_REQUESTED")
    assert run.run not in first.message
    expect(await client.run({}, request_id=run.run), "ALREADY_EXISTS", "DUPLICATE_REQUEST_ID")
    assert len(client.history.of(run.run, EnvironmentBegan)) == 1


async def test_a_request_id_is_not_used_again_after_its_reply(client: StubClient) -> None:
    run = new_id()
    assert (await client.run({"turns": 1}, request_id=run)).code == "OK"
    expect(await client.run({"turns": 1}, request_id=run), "ALREADY_EXISTS", "DUPLICATE_REQUEST_ID")
    assert len(client.history.of(run, KeepBegan)) == 1


@pytest.mark.parametrize("transport", ["run"])  # a session takes no such request: see test_session_frames
async def test_a_request_that_is_too_large(client: StubClient) -> None:
    outcome = await client.run({"script": [["raise", "x" * (64 * MIB)]]}, environment="scripted")
    expect(outcome, "RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE", outcome.metadata["limit"])
    assert "task_json" in outcome.metadata["field"]
