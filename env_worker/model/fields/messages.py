"""The message in a response, and what stands around it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import Message
from env_worker.domain.text import clean_text
from env_worker.model.errors import MalformedAnswerError
from env_worker.model.fields.json_values import get_name, get_object, get_text, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

_MOST_KEYS: Final = 10
_MOST_WORDS: Final = 300
"""Characters of a key's name, and of what the engine says beside an answer that it gave up."""
_GIVEN_UP: Final = frozenset({"abort", "error"})
"""Finish reasons of what is no answer: of vLLM and SGLang when they were paused, or told to abort requests,
and of gateways whose engine failed."""
_MESSAGE_KEYS: Final = frozenset(
    {"role", "content", "reasoning", "reasoning_content", "tool_calls", "tool_call_id", "name"}
)
"""What a message is made of; all else goes with it as it came."""


def first_choice(response: Mapping[str, Any]) -> Mapping[str, Any]:
    """`choices[0]`. MalformedAnswerError if there is none."""
    choices = response.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    error = response.get("error")
    words = error if isinstance(error, str) else get_text(get_object(response, "error"), "message")
    said = f"; it says: {clean_text(words)}" if words else ""  # whole: what is secret is not cut here
    keys = ", ".join(clean_text(str(key)[:_MOST_WORDS]) for key in list(response)[:_MOST_KEYS])
    raise MalformedAnswerError(
        f"the engine's response has no choices, but the keys {keys or 'of an empty object'}; check the "
        f"engine's URL and dialect{said}"
    )


def assistant_message(choice: Mapping[str, Any]) -> Message:
    """`message` of a chat choice, with nothing in it lost, unless what stands beside it nests too deeply to
    be written as JSON again. MalformedAnswerError if it is no message of an assistant."""
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
    whole = {**value, "role": "assistant"}
    known = {key: whole[key] for key in whole if key in _MESSAGE_KEYS}
    problem = ""
    for kept in (whole, known):
        try:
            message = Message.from_openai(kept)
        except (TypeError, ValueError, RecursionError) as error:
            problem = problem or str(error)
            continue
        if problem:
            # Not what they are: it has the engine's words.
            logger.warning("an engine's message had keys that cannot be carried, and is without them")
        return message
    raise MalformedAnswerError(f"message of the engine's response is not an OpenAI chat message: {problem}")


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
    return get_name(choice, "finish_reason") or get_name(get_object(choice, "finish_reason"), "type")


def given_up(response: Mapping[str, Any]) -> str:
    """What says that the engine gave the request up, whatever it had sampled by then; "" if it did not."""
    choices = response.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return ""
    for told in (choice, get_object(choice, "meta_info")):
        if (reason := finish_reason(told)) in _GIVEN_UP:
            words = get_text(get_object(told, "finish_reason"), "message")
            said = f": {words}" if words else ""
            return f"finish_reason {reason!r}, which is no answer: the engine gave the request up{said}"
    return ""
