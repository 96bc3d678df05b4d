"""Between the domain and `envtrio.v1`: what is streamed becomes protobuf, what is asked becomes domain.

Nothing here knows a training array: `node` reads the streamed part only. Per-token streams become
little-endian bytes, as episode.proto lays them out. Requests are read strictly; what is refused names its
field, its value and the next step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from envtrio.v1 import delta_pb2, episode_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from env_worker.domain import (
    Call,
    CallAdded,
    Change,
    Episode,
    EpisodeError,
    ErrorAdded,
    Finished,
    ImagePart,
    InfoSet,
    InvalidTaskError,
    JsonObject,
    JsonPart,
    Link,
    LinkAdded,
    Message,
    MetricSet,
    Node,
    NodeAdded,
    OkSet,
    Part,
    Pending,
    PendingSet,
    Reward,
    RewardSet,
    SamplingParams,
    StopSet,
    TextPart,
    ToolsSet,
    Trace,
)
from env_worker.strict_json import InvalidFieldError, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from envtrio.v1 import env_service_pb2

_NANOS: Final = 1_000_000_000

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


def partial_trace(change: Change) -> episode_pb2.Trace:
    """A Trace that holds nothing but `change`: merged behind what came before it, it is the change.

    TypeError for a preview, which is no part of a trace: see `pending`.
    """
    match change:
        case NodeAdded(_, added_node):
            return episode_pb2.Trace(nodes=[node(added_node)])
        case CallAdded(_, added_call):
            return episode_pb2.Trace(calls=[call(added_call)])
        case ErrorAdded(_, added_error):
            return episode_pb2.Trace(errors=[error(added_error)])
        case LinkAdded(_, added_link):
            return episode_pb2.Trace(links=[link(added_link)])
        case RewardSet(name, new_reward):
            return episode_pb2.Trace(rewards={name: reward(new_reward)})
        case MetricSet(name, value):
            return episode_pb2.Trace(metrics={name: value})
        case InfoSet(key, json_text):
            return episode_pb2.Trace(info_json={key: json_text})
        case OkSet(ok):
            return episode_pb2.Trace(ok=ok)
        case StopSet(condition):
            return episode_pb2.Trace(stop_condition=condition)
        case ToolsSet(json_text):
            return episode_pb2.Trace(tools_json=json_text)
        case Finished(unix_ns):
            return episode_pb2.Trace(finished_unix_nanos=unix_ns)
        case PendingSet():
            raise TypeError("a preview is no part of a trace; send it as TraceDelta.pending")


def pending(preview: Pending | None) -> delta_pb2.Pending:
    """What the model is being asked; empty for None, which drops the preview."""
    if preview is None:
        return delta_pb2.Pending()
    return delta_pb2.Pending(parent=preview.parent, messages=map(message, preview.messages))


def node(source: Node) -> episode_pb2.Node:
    """The streamed part of a node, without its training arrays."""
    return episode_pb2.Node(
        parent=source.parent,
        message=message(source.message),
        token_ids=source.token_ids.astype("<i4", copy=False).tobytes(),
        mask=source.mask.tobytes(),
        is_content=source.is_content.tobytes(),
        logprobs=source.logprobs.astype("<f4", copy=False).tobytes(),
        sampled=source.sampled,
        created_unix_nanos=_nanos(source.created_at),
        tools_json=source.tools_json,
    )


def message(source: Message) -> episode_pb2.Message:
    """A chat message. A plain text is one text part, the empty text none."""
    if isinstance(source.content, str):
        content = [episode_pb2.ContentPart(text=source.content)] if source.content else []
    else:
        content = [_part(part) for part in source.content]
    return episode_pb2.Message(
        role=_ROLES[source.role],
        content=content,
        reasoning=source.reasoning,
        tool_calls=[
            episode_pb2.ToolCall(id=wish.id, name=wish.name, arguments=wish.arguments)
            for wish in source.tool_calls
        ],
        tool_call_id=source.tool_call_id,
        name=source.name,
        extra_json=source.extra_json,
    )


def call(source: Call) -> episode_pb2.Call:
    """A request to a model. Where the engine counted no token at all it gave no counts."""
    counted = bool(source.prompt_tokens or source.completion_tokens)
    return episode_pb2.Call(
        node=source.node,
        model=source.model,
        simulated=source.simulated,
        endpoint=source.endpoint,
        started_at=_timestamp(source.started_at),
        duration=_duration(source.duration_seconds),
        prompt_tokens=source.prompt_tokens if counted else None,
        completion_tokens=source.completion_tokens if counted else None,
        cached_tokens=source.cached_tokens,
        finish_reason=source.finish_reason,
        error=None if source.error is None else error(source.error),
        attempt=source.attempt,
        weight_versions=[
            episode_pb2.WeightVersionSpan(version=span.version, start=span.start, end=span.end)
            for span in source.weight_versions
        ],
        dialect=source.dialect,
    )


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


def _part(part: Part) -> episode_pb2.ContentPart:
    match part:
        case TextPart(text):
            return episode_pb2.ContentPart(text=text)
        case ImagePart(url):
            return episode_pb2.ContentPart(image_url=url)
        case JsonPart(json_text):
            return episode_pb2.ContentPart(json=json_text)


def _nanos(seconds: float) -> int:
    return round(seconds * _NANOS)


def _timestamp(unix_seconds: float) -> Timestamp:
    seconds, nanos = divmod(_nanos(unix_seconds), _NANOS)
    return Timestamp(seconds=seconds, nanos=nanos)


def _duration(seconds: float) -> Duration:
    whole, nanos = divmod(_nanos(seconds), _NANOS)
    return Duration(seconds=whole, nanos=nanos)


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
