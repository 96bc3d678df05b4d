"""Messages, tools and calls of verifiers as ours. Duck-typed: the package is not imported."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from env_worker.domain import Call, Message
from env_worker.domain.records import MAX_DURATION_SECONDS, MAX_UNIX_SECONDS
from env_worker.domain.text import clean_text
from env_worker.envs.verifiers.errors import call_error
from env_worker.model.fields.json_values import MAX_INT32

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from env_worker.domain import WeightVersionSpan
    from env_worker.domain.text import JsonObject

_DIALECTS: Final = (
    ("/chat/completions", "openai-chat"),
    ("/messages", "anthropic-messages"),
    ("/responses", "openai-responses"),
)
_GENERATE: Final = "/inference/v1/generate"


def message(theirs: Any) -> Message:
    """A message, with nothing of it lost: what ours has no place for is in `extra_json`."""
    return Message.from_openai(openai_message(theirs))


def openai_message(theirs: Any) -> JsonObject:
    """A message as OpenAI's dict, with what that has no place for beside it."""
    content = theirs.content
    said: dict[str, Any] = {
        "role": theirs.role,
        "content": content if isinstance(content, str) or content is None else [_part(p) for p in content],
    }
    for key in ("reasoning_content", "tool_call_id", "name", "provider_state"):
        if value := getattr(theirs, key, None):
            said[key] = value
    if calls := getattr(theirs, "tool_calls", None):
        said["tool_calls"] = [
            {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}} for call in calls
        ]
        unusual = [
            {"index": index, "type": call.type, "namespace": call.namespace}
            for index, call in enumerate(calls)
            if call.type != "function" or call.namespace
        ]
        if unusual:
            said["tool_call_kinds"] = unusual
    return said


def tools_json(theirs: Iterable[Any]) -> str:
    """Tools as the JSON text of an array in OpenAI's form; "" for none."""
    offered = [_tool(tool) for tool in theirs]
    return clean_text(json.dumps(offered, ensure_ascii=False)) if offered else ""


def call(
    theirs: Any,
    *,
    client: Any,
    attempt: int,
    weight_versions: Iterable[WeightVersionSpan] = (),
    hide: Callable[[str], str] = str,
    hide_key: Callable[[str], str] = str,
) -> Call:
    """A model call. `client` is the agent's client configuration, `attempt` counts from 1, `weight_versions`
    are the spans of its node. Both may repeat what must not be: `hide` is what is done to an error's words,
    `hide_key` to the rest."""
    usage = theirs.usage
    started = _unix(theirs.time.start)
    endpoint, dialect = _where(theirs.endpoint or "", client)
    return Call(
        node=theirs.node,
        model=hide_key(clean_text(theirs.model or "")),
        endpoint=endpoint,
        dialect=dialect,
        started_at=started,
        duration_seconds=min(max(0.0, theirs.time.duration), MAX_DURATION_SECONDS - 1),
        prompt_tokens=_count(getattr(usage, "input_tokens", None)) or 0,
        completion_tokens=_count(getattr(usage, "completion_tokens", None)) or 0,
        cached_tokens=_count(getattr(usage, "cached_input_tokens", None)),
        finish_reason=hide_key(clean_text(theirs.finish_reason or "")),
        error=None if theirs.error is None else call_error(theirs.error, started, hide),
        attempt=attempt,
        weight_versions=tuple(replace(span, version=hide_key(span.version)) for span in weight_versions),
    )


def _part(part: Any) -> JsonObject:
    if part.type == "text":
        return {"type": "text", "text": part.text}
    dumped: JsonObject = part.model_dump(mode="json", exclude_none=True)
    return dumped


def _tool(tool: Any) -> JsonObject:
    dumped: JsonObject = tool.model_dump(mode="json", exclude_none=True)
    kind = dumped.pop("type", "function")
    return {"type": kind, "function": dumped} if kind == "function" else {"type": kind, **dumped}


def _where(path: str, client: Any) -> tuple[str, str]:
    """URL and API of the request. verifiers records the path that its harness asked for, which for the train
    client is not that of the engine."""
    base = str(getattr(client, "base_url", "") or "").rstrip("/")
    if getattr(client, "type", "") == "train":
        parts = urlsplit(base)
        root = f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix('/v1')}" if base else ""
        return clean_text(root + _GENERATE), "vllm-generate"
    dialect = next((name for end, name in _DIALECTS if path.endswith(end)), "")
    return clean_text(base + path), dialect


def _count(value: int | None) -> int | None:
    """None also where it is no count of tokens: engines say what they like."""
    return value if value is not None and 0 <= value <= MAX_INT32 else None


def _unix(seconds: float) -> float:
    return seconds if 0 < seconds < MAX_UNIX_SECONDS else time.time()
