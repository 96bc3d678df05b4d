"""The message in a response, and what stands around it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import Message
from env_worker.domain.text import clean_text
from env_worker.model.errors import MalformedAnswerError
from env_worker.model.fields.json_values import get_name, get_object, get_text, shown
from env_worker.model.fields.sizes import check_message

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

_MOST_KEYS: Final = 10
_MOST_WORDS: Final = 300
"""Characters of a key's name."""
_MOST_SAID: Final = 1 << 16
"""Characters of the engine's own words that are looked at; fewer are told."""
GIVEN_UP: Final = frozenset({"abort", "aborted", "cancelled", "canceled", "error"})
"""Finish reasons of what is no answer, in any case: `abort` of vLLM and SGLang when they were paused, or told
to abort requests, the others of gateways whose engine failed or was stopped. Others of theirs are answers:
stop, length, tool_calls, function_call, content_filter, repetition."""
_SUCCESS: Final = (0, 200, "0", "200")
"""Codes of an `error` that says that there was none, where the choice has finished."""
_NO_ANSWER: Final = "which is no answer: the engine gave the request up"
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
    said = f"; it says: {words}" if (words := _said(error)) else ""
    keys = ", ".join(clean_text(str(key)[:_MOST_WORDS]) for key in list(response)[:_MOST_KEYS])
    raise MalformedAnswerError(
        f"the engine's response has no choices, but the keys {keys or 'of an empty object'}; check the "
        f"engine's URL and dialect{said}"
    )


def assistant_message(choice: Mapping[str, Any]) -> Message:
    """`message` of a chat choice, with nothing in it lost, unless what stands beside it nests too deeply to
    be written as JSON again. MalformedAnswerError if it is no message of an assistant, or too large for
    one: see `sizes`."""
    value = choice.get("message")
    if not isinstance(value, dict):
        raise MalformedAnswerError(
            f"message of the engine's response is {shown(value)}, expected a chat message; check the "
            "engine's URL and dialect"
        )
    check_message(value)
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
            problem = problem or str(error)[:_MOST_SAID]
            continue
        if problem:
            # Not what they are: it has the engine's words.
            logger.warning("an engine's message had keys that cannot be carried, and is without them")
        return message
    raise MalformedAnswerError(f"message of the engine's response is not an OpenAI chat message: {problem}")


def text_message(choice: Mapping[str, Any]) -> Message:
    """`text` of a completion, as it is. MalformedAnswerError if there is none, or too much for a message."""
    value = choice.get("text")
    if not isinstance(value, str):
        raise MalformedAnswerError(
            f"text of the engine's response is {shown(value)}, expected a text; check the engine's URL and "
            "dialect"
        )
    check_message({"content": value})
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
    finished = False
    for told in (choice, get_object(choice, "meta_info")):
        if (reason := finish_reason(told)).lower() in GIVEN_UP:
            return f"finish_reason {reason!r}, {_NO_ANSWER}{_behind(get_object(told, 'finish_reason'))}"
        finished = finished or bool(reason)
    for told in (choice, response):
        error = told.get("error")
        if isinstance(error, dict):
            none = not any(error.values()) or (finished and error.get("code") in _SUCCESS)
        else:
            none = not error
        if not none:
            return f"an error beside its choices, {_NO_ANSWER}{_behind(error)}"
    return ""


def _behind(error: object) -> str:
    return f": {words}" if (words := _said(error)) else ""


def _said(error: object) -> str:
    """What an `error` of a response says to people. Not cut to what is told: what is secret in it is looked
    for as a whole."""
    if isinstance(error, str):
        return clean_text(error[:_MOST_SAID])
    return get_text(error, "message", _MOST_SAID) if isinstance(error, dict) else ""
