"""Outcomes as JSON lines."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from envtrio.v1.episode_pb2 import Episode, Role

from env_client import InvalidTaskError, WorkerLostError
from env_client.jsonl import episode_json, outcome_line
from tests.helpers.deltas import sampled_node, tokens

FINISHED = "1970-01-01T00:00:00.000000005Z"
RUN = "0123456789abcdef0123456789abcdef"


def full_episode() -> Episode:
    episode = Episode()
    episode.head.task_json = '{"n": 9007199254740993}'
    episode.head.ok = True
    episode.head.started_at.FromJsonString("2026-01-02T03:04:05Z")
    episode.head.duration.FromMilliseconds(1500)
    episode.head.errors.add(type="ValueError", message="first attempt", occurred_unix_nanos=2**60)
    trace = episode.traces.add(ok=True, stop_condition="max_turns", finished_unix_nanos=5, tools_json="[]")
    trace.header.trainable = True
    trace.header.started_at.FromSeconds(0)
    trace.rewards["r"].value, trace.rewards["r"].weight = 0.5, 2.0
    trace.rewards["open"].weight = 1.0
    trace.metrics["m"] = 3.0
    trace.info_json["refs"] = '[{"key": "k"}]'
    trace.links.add(source=0, target=1, kind="return")
    node = trace.nodes.add(token_ids=tokens(5, 6), mask=b"\0\0", tools_json='[{"type": "function"}]')
    node.message.role = Role.ROLE_USER
    node.message.content.add(text="look")
    node.message.content.add(image_url="data:,")
    node.message.content.add(json='{"type": "audio"}')
    answer = sampled_node(0, 2)
    answer.created_unix_nanos = 10**18 + 1
    answer.logprobs = b"\0\0\0\0" + b"\0\0\x80\xff"
    answer.message.Clear()
    answer.message.role = Role.ROLE_ASSISTANT
    answer.message.reasoning = "hm"
    answer.message.extra_json = "not JSON"
    answer.message.tool_calls.add(id="c1", name="add", arguments='{"a"')
    trace.nodes.append(answer)
    call = trace.calls.add(node=1, prompt_tokens=2, finish_reason="tool_calls")
    call.started_at.FromSeconds(0)
    call.duration.FromMilliseconds(250)
    call.weight_versions.add(version="v1", start=0, end=2)
    trace.calls.add().error.type = "TimeoutError"
    return episode


def test_an_episode() -> None:
    body = json.loads(outcome_line(7, RUN, None, {}, full_episode()))
    assert (body["index"], body["request_id"]) == (7, RUN)
    assert body["task"] == {"n": 9007199254740993}
    assert (body["ok"], body["reward"], body["duration_seconds"]) == (True, 1.0, 1.5)
    assert body["started_at"] == "2026-01-02T03:04:05Z"
    assert body["errors"][0]["occurred_at"] == "2006-07-14T23:58:24.606846976Z"
    (trace,) = body["traces"]
    assert trace["rewards"] == {"open": {"value": None, "weight": 1.0}, "r": {"value": 0.5, "weight": 2.0}}
    assert (trace["metrics"], trace["info"]) == ({"m": 3.0}, {"refs": [{"key": "k"}]})
    assert (trace["ok"], trace["stop_condition"], trace["finished_at"]) == (True, "max_turns", FINISHED)
    assert trace["tools"] == []
    assert trace["links"] == [{"source": 0, "target": 1, "kind": "return", "target_trace_id": None}]
    prompt, answer = trace["nodes"]
    assert (prompt["parent"], prompt["token_ids"], prompt["mask"]) == (None, [5, 6], [0, 0])
    assert (prompt["is_content"], prompt["logprobs"]) == (None, [])
    assert prompt["tools"] == [{"type": "function"}]
    assert prompt["message"]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "audio"},
    ]
    assert (answer["parent"], answer["mask"], answer["is_content"]) == (0, [1, 1], [1, 1])
    # JSON has no infinity.
    assert answer["logprobs"] == [0.0, None]
    assert answer["message"] == {
        "role": "assistant",
        "content": None,
        "reasoning": "hm",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a"'}}],
        "extra": "not JSON",
    }
    made, failed = trace["calls"]
    assert (made["node"], made["prompt_tokens"], made["completion_tokens"]) == (1, 2, None)
    assert (made["duration_seconds"], made["error"]) == (0.25, None)
    assert made["weight_versions"] == [{"version": "v1", "start": 0, "end": 2}]
    assert (failed["node"], failed["error"]["type"], failed["started_at"]) == (None, "TimeoutError", None)


def test_the_least_episode_says_null_and_not_zero() -> None:
    body = episode_json(Episode())
    assert body["reward"] is None
    assert body["task"] is None
    assert body["started_at"] is None
    assert body["duration_seconds"] is None
    episode = Episode()
    episode.traces.add().nodes.add().message.content.add(text="plain")
    (trace,) = episode_json(episode)["traces"]
    assert (trace["ok"], trace["stop_condition"], trace["finished_at"]) == (None, None, None)
    assert trace["nodes"][0]["message"]["content"] == "plain"
    assert trace["nodes"][0]["created_at"] is None


def test_what_is_absent_is_null_and_never_an_empty_text() -> None:
    """The protos' texts without presence are absent where they are empty; a message's part has presence."""
    episode = Episode()
    episode.head.errors.add()
    trace = episode.traces.add()
    trace.calls.add().error.SetInParent()
    trace.calls[0].weight_versions.add()
    trace.links.add()
    trace.nodes.add().message.content.add(text="")
    trace.stop_condition = ""
    empty = []

    def gather(path: str, value: Any) -> None:
        if value == "":
            empty.append(path)
        for key, each in value.items() if isinstance(value, dict) else ():
            gather(f"{path}.{key}", each)
        for each in value if isinstance(value, list) else ():
            gather(path, each)

    body = episode_json(episode)
    gather("", body)
    assert empty == [".traces.stop_condition", ".traces.nodes.message.content"]
    absent = {**body, **body["traces"][0], **body["traces"][0]["calls"][0], **body["errors"][0]}
    names = (
        "group_id",
        "worker_instance",
        "endpoint",
        "dialect",
        "finish_reason",
        "phase",
        "traceback",
        "model",
    )
    assert {name: absent[name] for name in names} == dict.fromkeys(names)


def test_constants_that_json_lacks_stay_text() -> None:
    episode = Episode()
    episode.head.task_json = '{"x": NaN}'
    assert episode_json(episode)["task"] == '{"x": NaN}'
    assert math.isnan(json.loads(episode.head.task_json)["x"])


def test_exceptions() -> None:
    lost = WorkerLostError("gone", reason="WORKER_LOST", request_id=RUN)
    assert json.loads(outcome_line(0, RUN, "maths", {"n": 1}, lost)) == {
        "index": 0,
        "request_id": RUN,
        "environment": "maths",
        "task": {"n": 1},
        "error": "WorkerLostError",
        "message": "gone",
        "code": "UNAVAILABLE",
        "reason": "WORKER_LOST",
    }
    unasked = json.loads(outcome_line(1, RUN, None, {}, ValueError("x")))
    assert (unasked["environment"], unasked["task"], unasked["code"]) == (None, {}, None)
    assert unasked["reason"] is None
    assert json.loads(outcome_line(1, RUN, None, {}, ValueError()))["message"] is None


@pytest.mark.parametrize("value", [math.nan, "\ud800", object()])
def test_a_task_that_could_not_be_sent_has_its_line_too(value: object) -> None:
    line = outcome_line(0, RUN, None, {"value": value}, InvalidTaskError("task: no JSON"))
    assert line.encode()
    assert json.loads(line)["task"].startswith("{'value': ")


def test_every_time_has_one_form() -> None:
    times: dict[str, set[str | None]] = {}

    def gather(value: Any) -> None:
        for key, each in value.items() if isinstance(value, dict) else ():
            assert not key.endswith("nanos")
            if key.endswith("_at"):
                times.setdefault(key, set()).add(each)
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            gather(each)

    gather(episode_json(full_episode()))
    assert set(times) == {"started_at", "finished_at", "created_at", "occurred_at"}
    for moment in set.union(*times.values()) - {None}:
        assert moment is not None
        assert datetime.fromisoformat(moment).tzinfo == UTC
