"""vLLM's `/v1/chat/completions`, and `/render`, which gives only what would be asked of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.engine.logprobs import chat_logprobs
from tests.engine.quirks import Quirk
from tests.engine.routing import nested_routing, npy_routing
from tests.engine.tokens import expected_ids
from tests.engine.wanted import (
    RefusedError,
    Wanted,
    check_common,
    check_length,
    check_mask,
    field,
    rows_from,
    sampling_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.engine.profiles import Profile, Served
    from tests.engine.tokens import Ids
    from tests.engine.turn import Turn


def chat_prompt(body: Mapping[str, Any], served: Served) -> Ids:
    """The prompt that the messages render to."""
    messages = field(body, "messages", list)
    if not messages:
        raise RefusedError("1 validation error: body.messages: at least one message is required")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RefusedError(f"1 validation error: body.messages: a message needs a role, got {message!r}")
    prompt_ids = expected_ids(messages, field(body, "tools", list, ()), retokenize=served.retokenize)
    check_length(prompt_ids, served)
    return prompt_ids


def chat_heads(body: Mapping[str, Any]) -> int | None:
    """How many candidates a chat request asks for."""
    top = field(body, "top_logprobs", int)
    if not field(body, "logprobs", bool, False):
        if top:
            raise RefusedError("when using `top_logprobs`, `logprobs` must be set to true.")
        return None
    return top or 0


def read_chat(body: Mapping[str, Any], profile: Profile, served: Served) -> tuple[Ids, Wanted]:
    """Prompt and wishes of a chat request."""
    check_common(body, served)
    check_mask(body, served)
    prompt_ids = chat_prompt(body, served)
    wanted = replace(
        sampling_of(body, served, chat_heads(body)),
        as_ids=field(body, "return_tokens_as_token_ids", bool, served.tokens_as_ids),
        rows_from=rows_from(body, prompt_ids) if profile.chat_rows_from else 0,
    )
    return prompt_ids, wanted


def chat_response(
    turn: Turn, wanted: Wanted, body: Mapping[str, Any], profile: Profile, served: Served
) -> dict[str, Any]:
    """The response, with null for what was not asked for."""
    told = field(body, "return_token_ids", bool, False)
    message = turn.message(profile.reasoning_key, parsers=served.parsers, tools=bool(body.get("tools")))
    choice: dict[str, Any] = {
        "index": 0,
        "message": None if message is None else message | _MORE_OF_A_MESSAGE,
        "logprobs": None if wanted.heads is None else chat_logprobs(turn, wanted.heads, as_ids=wanted.as_ids),
        "finish_reason": chat_finish(turn, message),
        "stop_reason": turn.stop_reason,
        "token_ids": turn.ids() if told else None,
    }
    response: dict[str, Any] = {
        "id": f"chatcmpl-{len(turn.prompt_ids)}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": served.model,
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": turn.usage(),
        "prompt_logprobs": None,
        "prompt_token_ids": turn.told_prompt() if told else None,
        "kv_transfer_params": None,
    }
    add_routing(response, choice, turn, wanted, profile, served)
    add_versions(choice, turn, body, profile)
    return response


def chat_finish(turn: Turn, message: Mapping[str, Any] | None) -> str:
    """The finish reason beside such a message."""
    called = bool(message and message.get("tool_calls")) and not turn.reply.finish_reason
    return "tool_calls" if called and turn.finish_reason == "stop" else turn.finish_reason


def add_routing(
    response: dict[str, Any],
    choice: dict[str, Any],
    turn: Turn,
    wanted: Wanted,
    profile: Profile,
    served: Served,
) -> None:
    """The routing rows, where this version of chat and completions has a place for them."""
    if profile.routing == "npy":
        choice["routed_experts"] = npy_routing(turn, profile, served, wanted.rows_from)
    elif profile.routing == "nested":
        response["prompt_routed_experts"], choice["routed_experts"] = nested_routing(turn, served)


def add_versions(choice: dict[str, Any], turn: Turn, body: Mapping[str, Any], profile: Profile) -> None:
    """The weight versions, where this version of chat and completions knows to be asked for them."""
    if profile.chat_versions:
        asked = field(body, "return_weight_versions", bool, False)
        choice["weight_versions"] = turn.versions() if asked else None


def shaped(turn: Turn, response: dict[str, Any]) -> Any:
    """The response as its quirks have it, and as the reply's own `edit` leaves it."""
    choices = response.get("choices")
    if choices and turn.has(Quirk.CHOICE_NULL):
        response["choices"] = [None]
    if choices and turn.has(Quirk.CHOICES_EMPTY):
        response["choices"] = []
    told = _without_nulls(response) if turn.has(Quirk.KEYS_MISSING) else response
    return turn.reply.edit(told) if turn.reply.edit else told


_MORE_OF_A_MESSAGE = {"refusal": None, "annotations": None, "audio": None, "function_call": None}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
