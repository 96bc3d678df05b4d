"""Outcomes of runs as JSON lines.

Everything is plain JSON: no NaN, token streams as lists. What is absent is null, an empty text as well, which
in the protos is no other thing; in messages, which are as OpenAI has them, it is left out. Times are as in
protobuf's own JSON, which `env-client top --json` has too: RFC 3339 in UTC, under names that end in `_at`.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from envtrio.v1.episode_pb2 import Call, EpisodeError, Message, Node, Role, Trace
from google.protobuf.timestamp_pb2 import Timestamp

from env_client import arrays
from env_client.errors import EnvError, InvalidTaskError
from env_client.request import task_text
from env_client.training_arrays.excerpt import excerpt

if TYPE_CHECKING:
    from envtrio.v1.episode_pb2 import ContentPart, Episode
    from google.protobuf.duration_pb2 import Duration

    from env_client.request import Task


def outcome_line(
    index: int, request_id: str, environment: str | None, task: Task, outcome: Episode | Exception
) -> str:
    """One line without its end: an episode, or the exception that there is instead of one.

    Args:
        index: which of the runs it was, from 0.
        request_id: its id. It is written whole, so whoever has the file can take its runs back while they can
            be.
        environment: the one that was asked for; None: none was. An episode says itself where it is from.
        task: what was asked for.
        outcome: what became of it.
    """
    if isinstance(outcome, Exception):
        body = exception_json(environment, task, outcome)
    else:
        body = episode_json(outcome)
    return json.dumps({"index": index, "request_id": request_id, **body}, allow_nan=False, ensure_ascii=False)


def exception_json(environment: str | None, task: Task, error: Exception) -> dict[str, Any]:
    """A run without an episode, and its exception: class, message, status code, reason."""
    return {
        "environment": environment,
        "task": _sendable(task),
        "error": type(error).__name__,
        "message": str(error) or None,
        "code": error.code or None if isinstance(error, EnvError) else None,
        "reason": error.reason or None if isinstance(error, EnvError) else None,
    }


def episode_json(episode: Episode) -> dict[str, Any]:
    """A checked episode: fields as in episode.proto, JSON texts parsed, what is absent as null."""
    head = episode.head
    return {
        "episode_id": head.episode_id or None,
        "environment": head.environment or None,
        "task": _parsed(head.task_json),
        "ok": head.ok,
        "reward": arrays.episode_reward(episode),
        "errors": [_error(error) for error in head.errors],
        "started_at": _time(head.started_at) if head.HasField("started_at") else None,
        "duration_seconds": _seconds(head.duration) if head.HasField("duration") else None,
        "group_id": head.group_id or None,
        "worker_instance": head.worker_instance or None,
        "traces": [_trace(trace) for trace in episode.traces],
    }


def _trace(trace: Trace) -> dict[str, Any]:
    header = trace.header
    return {
        "trace_id": header.trace_id or None,
        "agent": header.agent or None,
        "trainable": header.trainable,
        "model": header.model or None,
        "started_at": _time(header.started_at) if header.HasField("started_at") else None,
        "finished_at": _nanos(trace.finished_unix_nanos),
        "ok": trace.ok if trace.HasField("ok") else None,
        "stop_condition": trace.stop_condition if trace.HasField("stop_condition") else None,
        "reward": arrays.reward(trace),
        "rewards": {
            name: {"value": entry.value if entry.HasField("value") else None, "weight": entry.weight}
            for name, entry in sorted(trace.rewards.items())
        },
        "metrics": dict(sorted(trace.metrics.items())),
        "info": {key: json.loads(text) for key, text in sorted(trace.info_json.items())},
        "tools": _parsed(trace.tools_json),
        "nodes": [_node(node) for node in trace.nodes],
        "calls": [_call(call) for call in trace.calls],
        "errors": [_error(error) for error in trace.errors],
        "links": [
            {
                "source": link.source,
                "target": link.target,
                "kind": link.kind or None,
                "target_trace_id": link.target_trace_id or None,
            }
            for link in trace.links
        ],
    }


def _node(node: Node) -> dict[str, Any]:
    content, logprobs = arrays.is_content(node), arrays.logprobs(node)
    return {
        "parent": node.parent if node.HasField("parent") else None,
        "message": _message(node.message),
        "token_ids": arrays.token_ids(node).tolist(),
        "mask": list(node.mask),
        "is_content": None if content is None else list(node.is_content),
        # A token that the sampler could not have chosen has -inf, for which JSON has no number.
        "logprobs": None
        if logprobs is None
        else [value if math.isfinite(value) else None for value in logprobs.tolist()],
        "sampled": node.sampled,
        "created_at": _nanos(node.created_unix_nanos),
        "tools": _parsed(node.tools_json),
    }


def _message(message: Message) -> dict[str, Any]:
    """In the OpenAI form."""
    parts = [_part(part) for part in message.content]
    plain = len(message.content) == 1 and message.content[0].HasField("text")
    body: dict[str, Any] = {
        "role": Role.Name(message.role).removeprefix("ROLE_").lower(),
        "content": message.content[0].text if plain else parts or None,
    }
    for name in ("reasoning", "tool_call_id", "name"):
        if value := getattr(message, name):
            body[name] = value
    if message.tool_calls:
        body["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.extra_json:
        body["extra"] = _parsed(message.extra_json)
    return body


def _part(part: ContentPart) -> Any:
    kind = part.WhichOneof("part")
    if kind == "image_url":
        return {"type": "image_url", "image_url": {"url": part.image_url}}
    return _parsed(part.json) if kind == "json" else {"type": "text", "text": part.text}


def _call(call: Call) -> dict[str, Any]:
    counts = ("node", "prompt_tokens", "completion_tokens", "cached_tokens")
    return {
        **{name: getattr(call, name) if call.HasField(name) else None for name in counts},  # type: ignore[arg-type]
        "model": call.model or None,
        "simulated": call.simulated,
        "endpoint": call.endpoint or None,
        "dialect": call.dialect or None,
        "attempt": call.attempt,
        "started_at": _time(call.started_at) if call.HasField("started_at") else None,
        "duration_seconds": _seconds(call.duration) if call.HasField("duration") else None,
        "finish_reason": call.finish_reason or None,
        "error": _error(call.error) if call.HasField("error") else None,
        "weight_versions": [
            {"version": span.version or None, "start": span.start, "end": span.end}
            for span in call.weight_versions
        ],
    }


def _error(error: EpisodeError) -> dict[str, Any]:
    return {
        "type": error.type or None,
        "message": error.message or None,
        "phase": error.phase or None,
        "traceback": error.traceback or None,
        "occurred_at": _nanos(error.occurred_unix_nanos),
    }


def _parsed(text: str) -> Any:
    """JSON text parsed; empty is None; what is none after all stays text, for a line must not fail for it."""
    if not text:
        return None
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return value


def _sendable(task: Task) -> Any:
    """The task if it is one, else some text of it: a run may have failed for that, and has its line too."""
    try:
        task_text(task)
    except InvalidTaskError:
        return excerpt(task)
    return dict(task)


def _time(moment: Timestamp) -> str:
    return moment.ToJsonString()


def _nanos(since_epoch: int) -> str | None:
    """As `_time`. 0 is absent."""
    if not since_epoch:
        return None
    moment = Timestamp()
    moment.FromNanoseconds(since_epoch)
    return moment.ToJsonString()


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9
