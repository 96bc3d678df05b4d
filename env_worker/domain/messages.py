"""Chat messages: immutable, close to OpenAI's chat format, with nothing in them lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from env_worker.domain.text import JsonObject, check_text, clean_text, decode_json, encode_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROLES: Final = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of the model. `arguments` is the JSON text as the model wrote it, maybe invalid."""

    id: str
    name: str
    arguments: str

    def __post_init__(self) -> None:
        check_text(self.id, "tool_call.id")
        check_text(self.name, "tool_call.name")
        check_text(self.arguments, "tool_call.arguments")


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text."""

    text: str

    def __post_init__(self) -> None:
        check_text(self.text, "text part")


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image, as an http(s) or data URL."""

    url: str

    def __post_init__(self) -> None:
        check_text(self.url, "image part's url")


@dataclass(frozen=True, slots=True)
class JsonPart:
    """Any other OpenAI content part (audio, file, an image with a detail, ...), as the JSON text of its
    object.
    """

    json: str

    def __post_init__(self) -> None:
        decode_json(self.json, "content part", dict)


Part: TypeAlias = TextPart | ImagePart | JsonPart


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message.

    `content` is a str, or a tuple of parts; `reasoning` the model's separate reasoning text; `extra_json` the
    JSON text of an object with any further OpenAI keys, or "". Use the constructors `system`, `user`,
    `assistant`, `tool`. TypeError or ValueError if the role is unknown or a text cannot be encoded.
    """

    role: str
    content: str | tuple[Part, ...] = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    extra_json: str = ""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"message role is {self.role!r}, expected one of {', '.join(ROLES)}")
        if isinstance(self.content, str):
            check_text(self.content, "message content")
        else:
            object.__setattr__(self, "content", tuple(self.content))
            for part in self.content:
                if not isinstance(part, (TextPart, ImagePart, JsonPart)):
                    raise TypeError(
                        f"message content holds a {type(part).__name__}, expected TextPart, ImagePart or "
                        "JsonPart; use Message.from_openai for dicts"
                    )
        if type(self.tool_calls) is not tuple:
            object.__setattr__(self, "tool_calls", tuple(self.tool_calls))
        check_text(self.reasoning, "message reasoning")
        check_text(self.tool_call_id, "message tool_call_id")
        check_text(self.name, "message name")
        if self.extra_json:
            decode_json(self.extra_json, "message extra_json", dict)

    @classmethod
    def system(cls, content: str | Sequence[Part]) -> Message:
        """A system message."""
        return cls("system", _content(content))

    @classmethod
    def user(cls, content: str | Sequence[Part], *, name: str = "") -> Message:
        """A user message."""
        return cls("user", _content(content), name=name)

    @classmethod
    def assistant(
        cls, content: str | Sequence[Part] = "", *, reasoning: str = "", tool_calls: Sequence[ToolCall] = ()
    ) -> Message:
        """An assistant message."""
        return cls("assistant", _content(content), reasoning, tuple(tool_calls))

    @classmethod
    def tool(cls, content: str | Sequence[Part], tool_call_id: str, *, name: str = "") -> Message:
        """A tool's result, as the answer to the tool call `tool_call_id`."""
        return cls("tool", _content(content), tool_call_id=tool_call_id, name=name)

    @property
    def text(self) -> str:
        """The content's text: the str itself, or its text parts joined."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @classmethod
    def from_openai(cls, message: Mapping[str, object]) -> Message:
        """The message that an OpenAI chat dict describes.

        Lone surrogates, which models produce when they stop inside an emoji, become `?`. Reasoning is read
        from `reasoning_content` or `reasoning`. Unknown keys go to `extra_json`, except those that are None.
        ValueError if the role is unknown or a tool call is not of type "function".
        """
        rest = {key: value for key, value in message.items() if value is not None}
        content = rest.pop("content", "")
        calls = rest.pop("tool_calls", ())
        reasoning = rest.pop("reasoning", "")
        return cls(
            role=clean_text(str(rest.pop("role", ""))),
            content=clean_text(content)
            if isinstance(content, str)
            else tuple(map(_part, _items(content, "content"))),
            reasoning=clean_text(str(rest.pop("reasoning_content", "") or reasoning)),
            tool_calls=tuple(map(_tool_call, _items(calls, "tool_calls"))),
            tool_call_id=clean_text(str(rest.pop("tool_call_id", ""))),
            name=clean_text(str(rest.pop("name", ""))),
            extra_json=_clean_json(rest, "message") if rest else "",
        )

    def to_openai(self) -> JsonObject:
        """The OpenAI chat dict: `from_openai(message.to_openai()) == message`. Reasoning is
        `reasoning_content`.
        """
        result: JsonObject = {"role": self.role}
        if isinstance(self.content, str):
            # A null content beside tool calls is what OpenAI itself sends.
            result["content"] = None if self.tool_calls and not self.content else self.content
        else:
            result["content"] = [_part_to_openai(part) for part in self.content]
        if self.reasoning:
            result["reasoning_content"] = self.reasoning
        if self.tool_calls:
            result["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        if self.tool_call_id:
            result["tool_call_id"] = self.tool_call_id
        if self.name:
            result["name"] = self.name
        if self.extra_json:
            result = decode_json(self.extra_json, "message extra_json", dict) | result
        return result


def _content(content: str | Sequence[Part]) -> str | tuple[Part, ...]:
    return content if isinstance(content, str) else tuple(content)


def _items(value: object, key: str) -> Sequence[Mapping[str, object]]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"OpenAI message's {key} is a {type(value).__name__}, expected a list of objects")
    return value


def _part(part: Mapping[str, object]) -> Part:
    match part:
        case {"type": "text", "text": str(text), **rest} if not rest:
            return TextPart(clean_text(text))
        case {"type": "image_url", "image_url": {"url": str(url), **detail}, **rest} if (
            not rest and not detail
        ):
            return ImagePart(clean_text(url))
    return JsonPart(_clean_json(part, "content part"))


def _part_to_openai(part: Part) -> JsonObject:
    match part:
        case TextPart(text):
            return {"type": "text", "text": text}
        case ImagePart(url):
            return {"type": "image_url", "image_url": {"url": url}}
        case JsonPart(json):
            value: JsonObject = decode_json(json, "content part", dict)
            return value


def _tool_call(call: Mapping[str, object]) -> ToolCall:
    function = call.get("function")
    if call.get("type", "function") != "function" or not isinstance(function, dict):
        raise ValueError(
            f"OpenAI tool call of type {call.get('type')!r}, expected 'function' with its function object"
        )
    arguments = function.get("arguments") or ""
    if not isinstance(arguments, str):  # some servers parse them
        arguments = encode_json(arguments, "tool call arguments")
    return ToolCall(
        clean_text(str(call.get("id") or "")),
        clean_text(str(function.get("name") or "")),
        clean_text(arguments),
    )


def _clean_json(value: object, field: str) -> str:
    return encode_json(_cleaned(value), field)


def _cleaned(value: object) -> object:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned(item) for item in value]
    return value
