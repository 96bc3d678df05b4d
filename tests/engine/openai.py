"""OpenAI's own `/v1/chat/completions`: nothing per token but texts, and no key that is not in its API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.engine.logprobs import chat_logprobs
from tests.engine.vllm_chat import chat_finish, chat_heads, chat_prompt
from tests.engine.wanted import RefusedError, check_common, sampling_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.engine.profiles import Profile, Served
    from tests.engine.tokens import Ids
    from tests.engine.turn import Turn
    from tests.engine.wanted import Wanted

_KEYS: Final = frozenset(
    {
        "model", "messages", "stream", "n", "temperature", "top_p", "max_tokens", "max_completion_tokens",
        "stop", "seed", "logprobs", "top_logprobs", "presence_penalty", "frequency_penalty", "logit_bias",
        "tools", "tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort", "metadata",
        "user", "store", "service_tier", "stream_options",
    }
)  # fmt: skip


def read_openai_chat(body: Mapping[str, Any], served: Served) -> tuple[Ids, Wanted]:
    """Prompt and wishes of a chat request."""
    if unknown := sorted(body.keys() - _KEYS):
        raise RefusedError(f"Unrecognized request argument supplied: {unknown[0]}")
    check_common(body, served)
    return chat_prompt(body, served), sampling_of(body, served, chat_heads(body))


def openai_response(
    turn: Turn, wanted: Wanted, body: Mapping[str, Any], profile: Profile, served: Served
) -> dict[str, Any]:
    """The response."""
    message = turn.message(profile.reasoning_key, parsers=served.parsers, tools=bool(body.get("tools")))
    if message is not None:
        message.pop(profile.reasoning_key)
    return {
        "id": f"chatcmpl-{len(turn.prompt_ids)}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": served.model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None
                if wanted.heads is None
                else chat_logprobs(turn, wanted.heads, as_ids=False, safe=True),
                "finish_reason": chat_finish(turn, message),
            }
        ],
        "usage": turn.usage(),
        "system_fingerprint": None,
    }
