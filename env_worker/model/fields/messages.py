"""The message in a response, and what stands around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from env_worker.domain import Message
from env_worker.domain.text import clean_text
from env_worker.model.errors import MalformedAnswerError
from env_worker.model.fields.json_values import get_object, get_text, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_KEYS = 10
_MOST_WORDS = 300
"""Characters of the engine's own words: they may repeat the prompt."""


def first_choice(response: Mapping[str, Any]) -> Mapping[str, Any]:
    """`choices[0]`. MalformedAnswerError if there is none."""
    choices = response.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    error = response.get("error")
    words = error if isinstance(error, str) else get_text(get_object(response, "error"), "message")
    said = f"; it says: {clean_text(words[:_MOST_WORDS])}" if words else ""
    keys = ", ".join(clean_text(str(key)[:_MOST_WORDS]) for key in list(response)[:_MOST_KEYS])
    raise MalformedAnswerError(
        f"the engine's response has no choices, but the keys {keys or 'of an empty object'}{said}; check the "
        "engine's URL and dialect"
    )


def assistant_message(choice: Mapping[str, Any]) -> Message:
    """`message` of a chat choice, with nothing in it lost. MalformedAnswerError if it is no message of an
    assistant."""
    value = choice.get("message")
    if not isinstance(value, dict):
        raise MalformedAnswerError(
            f"message of the engine's response is {shown(value)}, expected a chat message; check the "
            "engine's URL and dialect"
        )
    role = value.get("role")
    if role not in (None, "assistant"):
        raise MalformedAnswerError(
            f"message of the engine's response has the role {shown(role)}, expected 'assistant'"
        )
    try:
        return Message.from_openai({**value, "role": "assistant"})
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedAnswerError(
            f"message of the engine's response is not an OpenAI chat message: {error}"
        ) from None


def text_message(choice: Mapping[str, Any]) -> Message:
    """`text` of a completion, as it is. MalformedAnswerError if there is none."""
    value = choice.get("text")
    if not isinstance(value, str):
        raise MalformedAnswerError(
            f"text of the engine's response is {shown(value)}, expected a text; check the engine's URL and "
            "dialect"
        )
    return Message.assistant(clean_text(value))


def finish_reason(choice: Mapping[str, Any]) -> str:
    """The engine's own word, or "": some have it in an object's `type`."""
    return get_text(choice, "finish_reason") or get_text(get_object(choice, "finish_reason"), "type")
