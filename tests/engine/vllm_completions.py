"""vLLM's `/v1/completions`, whose prompt is a text or token ids."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.engine.logprobs import completion_logprobs
from tests.engine.quirks import Quirk
from tests.engine.tokens import VOCABULARY, encode, join
from tests.engine.vllm_chat import add_routing, add_versions
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


def ids_of(value: Any, name: str) -> Ids:
    """A prompt that is token ids. RefusedError if an id is none of the model's, or there is none."""
    if not value or not isinstance(value, list) or not all(type(index) is int for index in value):
        raise RefusedError(f"1 validation error: body.{name}: Input should be a non-empty list of integers")
    if min(value) < 0:
        raise RefusedError(f"{name} must not contain negative values")
    if max(value) >= VOCABULARY:
        raise RefusedError(f"Token id {max(value)} is out of vocabulary")
    return join(value)


def read_completion(body: Mapping[str, Any], profile: Profile, served: Served) -> tuple[Ids, Wanted]:
    """Prompt and wishes of a completions request."""
    check_common(body, served)
    check_mask(body, served)
    match body.get("prompt"):
        case str(text) if text:
            prompt_ids = encode(text, specials=True)
        case [list(only)]:
            prompt_ids = ids_of(only, "prompt")
        case other:
            prompt_ids = ids_of(other, "prompt")
    check_length(prompt_ids, served)
    wanted = replace(
        sampling_of(body, served, field(body, "logprobs", int)),
        as_ids=field(body, "return_tokens_as_token_ids", bool, served.tokens_as_ids),
        rows_from=rows_from(body, prompt_ids) if profile.chat_rows_from else 0,
    )
    # OpenAI's own default, which cuts off whoever forgets it.
    return prompt_ids, wanted if wanted.max_tokens else replace(wanted, max_tokens=16)


def completion_response(
    turn: Turn, wanted: Wanted, body: Mapping[str, Any], profile: Profile, served: Served
) -> dict[str, Any]:
    """The response, with null for what was not asked for; both kinds of ids are on the choice."""
    told = field(body, "return_token_ids", bool, False)
    choice: dict[str, Any] = {
        "index": 0,
        "text": None if turn.has(Quirk.MESSAGE_NULL) or turn.has(Quirk.CONTENT_NULL) else turn.text,
        "logprobs": None
        if wanted.heads is None
        else completion_logprobs(turn, wanted.heads, as_ids=wanted.as_ids),
        "finish_reason": turn.finish_reason,
        "stop_reason": turn.stop_reason,
        "token_ids": turn.ids() if told else None,
        "prompt_logprobs": None,
        "prompt_token_ids": turn.told_prompt() if told else None,
    }
    response: dict[str, Any] = {
        "id": f"cmpl-{len(turn.prompt_ids)}",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": served.model,
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": turn.usage(),
        "kv_transfer_params": None,
    }
    add_routing(response, choice, turn, wanted, profile, served)
    add_versions(choice, turn, body, profile)
    return response
