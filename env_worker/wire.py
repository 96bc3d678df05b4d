"""Between the domain and `envtrio.v1`: what is streamed becomes protobuf, what is asked becomes domain.

Nothing here knows a training array: `node` reads the streamed part only. Per-token streams become
little-endian bytes, as episode.proto lays them out. Requests are read strictly; what is refused names its
field, its value and the next step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from envtrio.v1 import delta_pb2, episode_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from env_worker.domain import (
    Call,
    Episode,
    EpisodeError,
    ImagePart,
    InvalidTaskError,
    JsonObject,
    JsonPart,
    Link,
    Message,
    Node,
    Part,
    Pending,
    Reward,
    SamplingParams,
    TextPart,
    Trace,
)
from env_worker.strict_json import InvalidFieldError, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from envtrio.v1 import env_service_pb2

_NANOS: Final = 1_000_000_000
_INT32: Final = np.dtype("<i4")
_FLOAT32: Final = np.dtype("<f4")

_ROLES: Final[Mapping[str, episode_pb2.Role.ValueType]] = {
    "system": episode_pb2.ROLE_SYSTEM,
    "developer": episode_pb2.ROLE_DEVELOPER,
    "user": episode_pb2.ROLE_USER,
    "assistant": episode_pb2.ROLE_ASSISTANT,
    "tool": episode_pb2.ROLE_TOOL,
}


# What is streamed.


def header(trace: Trace) -> episode_pb2.TraceHeader:
    """What is known of `trace` when it opens."""
    return episode_pb2.TraceHeader(
        trace_id=trace.id,
        agent=trace.agent,
        trainable=trace.trainable,
        model=trace.model,
        started_at=_timestamp(trace.started_at),
    )


def pending(preview: Pending | None) -> delta_pb2.Pending:
    """What the model is being asked; empty for None, which drops the preview."""
    made = delta_pb2.Pending()
    if preview is not None:
        if preview.parent is not None:
            made.parent = preview.parent
        for each in preview.messages:
            _write_message(each, made.messages.add())
    return made


def node(source: Node) -> episode_pb2.Node:
    """The streamed part of a node, without its training arrays."""
    made = episode_pb2.Node()
    if source.parent is not None:
        made.parent = source.parent
    _write_message(source.message, made.message)
    made.token_ids = source.token_ids.astype(_INT32, copy=False).tobytes()
    made.mask = source.mask.tobytes()
    if len(source.is_content):
        made.is_content = source.is_content.tobytes()
    if len(source.logprobs):
        made.logprobs = source.logprobs.astype(_FLOAT32, copy=False).tobytes()
    made.sampled = source.sampled
    made.created_unix_nanos = _nanos(source.created_at)
    if source.tools_json:
        made.tools_json = source.tools_json
    return made


def message(source: Message) -> episode_pb2.Message:
    """A chat message. A plain text is one text part, the empty text none."""
    made = episode_pb2.Message()
    _write_message(source, made)
    return made


def call(source: Call) -> episode_pb2.Call:
    """A request to a model. Where the engine counted no token at all it gave no counts."""
    made = episode_pb2.Call()
    if source.node is not None:
        made.node = source.node
    made.model = source.model
    if source.simulated:
        made.simulated = source.simulated
    made.endpoint = source.endpoint
    _write_seconds(source.started_at, made.started_at)
    _write_seconds(source.duration_seconds, made.duration)
    if source.prompt_tokens or source.completion_tokens:
        if source.prompt_tokens is not None:
            made.prompt_tokens = source.prompt_tokens
        if source.completion_tokens is not None:
            made.completion_tokens = source.completion_tokens
    if source.cached_tokens is not None:
        made.cached_tokens = source.cached_tokens
    made.finish_reason = source.finish_reason
    if source.error is not None:
        made.error.CopyFrom(error(source.error))
    made.attempt = source.attempt
    for span in source.weight_versions:
        made.weight_versions.add(version=span.version, start=span.start, end=span.end)
    made.dialect = source.dialect
    return made


def link(source: Link) -> episode_pb2.Link:
    """A causal link."""
    return episode_pb2.Link(
        source=source.source, target=source.target, kind=source.kind, target_trace_id=source.target_trace_id
    )


def reward(source: Reward) -> episode_pb2.Reward:
    """A reward as a whole; without a value it stays without one, which is not a zero."""
    return episode_pb2.Reward(value=source.value, weight=source.weight)


def error(source: EpisodeError) -> episode_pb2.EpisodeError:
    """A failure, as data."""
    return episode_pb2.EpisodeError(
        type=source.type,
        message=source.message,
        phase=source.phase,
        traceback=source.traceback,
        occurred_unix_nanos=_nanos(source.occurred_at),
    )


def head(
    episode: Episode, *, task_json: str, worker_instance: str, duration_seconds: float
) -> episode_pb2.EpisodeHead:
    """What is true of `episode` as a whole.

    `task_json` is the request's own text, `duration_seconds` how long the environment ran on a monotonic
    clock.
    """
    return episode_pb2.EpisodeHead(
        episode_id=episode.id,
        environment=episode.environment,
        task_json=task_json,
        ok=episode.ok,
        errors=map(error, episode.errors),
        started_at=_timestamp(episode.started_at),
        duration=_duration(duration_seconds),
        group_id=episode.group_id,
        worker_instance=worker_instance,
    )


# A submessage is written where it stands: one that is made apart and handed over is copied field by field.


def _write_message(source: Message, made: episode_pb2.Message) -> None:
    made.role = _ROLES[source.role]
    if not isinstance(source.content, str):
        for part in source.content:
            _write_part(part, made.content.add())
    elif source.content:
        made.content.add().text = source.content
    if source.reasoning:
        made.reasoning = source.reasoning
    for wish in source.tool_calls:
        made.tool_calls.add(id=wish.id, name=wish.name, arguments=wish.arguments)
    if source.tool_call_id:
        made.tool_call_id = source.tool_call_id
    if source.name:
        made.name = source.name
    if source.extra_json:
        made.extra_json = source.extra_json


def _write_part(part: Part, made: episode_pb2.ContentPart) -> None:
    match part:
        case TextPart(text):
            made.text = text
        case ImagePart(url):
            made.image_url = url
        case JsonPart(json_text):
            made.json = json_text


def _write_seconds(seconds: float, made: Timestamp | Duration) -> None:
    made.seconds, made.nanos = divmod(_nanos(seconds), _NANOS)


def _nanos(seconds: float) -> int:
    return round(seconds * _NANOS)


def _timestamp(unix_seconds: float) -> Timestamp:
    made = Timestamp()
    _write_seconds(unix_seconds, made)
    return made


def _duration(seconds: float) -> Duration:
    made = Duration()
    _write_seconds(seconds, made)
    return made


# What is asked.


# As SamplingParams documents them; NaN fails every comparison, infinities are refused by the domain.
_SAMPLING_RULES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "temperature": (lambda value: value >= 0, "0 or more"),
    "top_p": (lambda value: 0 < value <= 1, "more than 0, at most 1"),
    "top_k": (lambda value: value == -1 or value >= 1, "-1 (off) or at least 1"),
    "min_p": (lambda value: 0 <= value <= 1, "0 to 1"),
    "max_tokens": (lambda value: value >= 1, "at least 1"),
    "presence_penalty": (lambda value: -2 <= value <= 2, "-2 to 2"),
    "frequency_penalty": (lambda value: -2 <= value <= 2, "-2 to 2"),
    "repetition_penalty": (lambda value: value > 0, "more than 0"),
}


def sampling_params(source: env_service_pb2.SamplingParams) -> SamplingParams:
    """The sampling parameters of a request. InvalidFieldError naming what is out of range or no JSON."""
    given: dict[str, Any] = {}
    for name, (allows, allowed) in _SAMPLING_RULES.items():
        if source.HasField(name):  # type: ignore[arg-type]  # a name of the table above
            given[name] = getattr(source, name)
            if not allows(given[name]):
                raise InvalidFieldError(
                    f"sampling.{name}", f"is {given[name]}, expected {allowed}; or leave it out"
                )
    if source.HasField("seed"):
        given["seed"] = source.seed
    if source.HasField("top_logprobs_count"):
        given["logprobs"] = source.top_logprobs_count
    if source.stop:
        given["stop"] = tuple(source.stop)
    extra = {
        key: parse_json(text, f"sampling.extra_json[{key!r}]") for key, text in source.extra_json.items()
    }
    try:
        return SamplingParams(**given, extra=extra)
    except (TypeError, ValueError) as problem:
        raise InvalidFieldError("sampling", f"is refused: {problem}") from problem


def parse_task(task_json: str) -> JsonObject:
    """The task of a request. InvalidTaskError unless `task_json` is one strict JSON object."""
    try:
        value = parse_json(task_json, "task_json")
    except InvalidFieldError as problem:
        raise InvalidTaskError(str(problem)) from problem
    if not isinstance(value, dict):
        raise InvalidTaskError(
            f"task_json holds a JSON {type(value).__name__}, expected an object: send {{...}}"
        )
    return value
