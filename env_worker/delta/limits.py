"""The limit of one message, and which field is to blame when it is exceeded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import Message

from env_worker import wire
from env_worker.domain import (
    CallAdded,
    ErrorAdded,
    ImagePart,
    InfoSet,
    JsonPart,
    LinkAdded,
    NodeAdded,
    Pending,
    PendingSet,
    TextPart,
    ToolsSet,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from env_worker.domain import Change, Node
    from env_worker.domain import Message as DomainMessage

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Most bytes of one serialized message on every hop."""


class MessageTooLargeError(Exception):
    """One thing that must cross in one message does not fit: its run ends, every other run goes on.

    `field` is the largest field, `value` how many bytes the message would have at least, `limit` the most
    that it may have.
    """

    def __init__(self, field: str, value: int, limit: int) -> None:
        super().__init__(
            f"{field} makes a message of {value} bytes or more, the limit of one message is {limit} bytes; "
            "make the environment write less into that field, or split it over several nodes"
        )
        self.field = field
        self.value = value
        self.limit = limit


def check_bound(change: Change, trace_id: str, limit: int) -> None:
    """MessageTooLargeError if `change` cannot fit into `limit` bytes, told by the lengths of what it holds.

    So nothing is encoded that is too large: that would stop every other run for as long as it takes.
    """
    match change:
        case NodeAdded(index, node):
            total = sum(length for _, length in _node_lengths(node))
            lengths = _node_lengths(node) if total > limit else iter(())
            path = f"nodes[{index}]"
        case PendingSet(Pending(messages)):
            total = sum(length for message in messages for _, length in _message_lengths(message))
            lengths = (item for message in messages for item in _message_lengths(message))
            path = "pending.messages[]"
        case InfoSet(key, text):
            total, lengths, path = len(text), iter([("", len(text))]), f"info_json[{key!r}]"
        case ToolsSet(text):
            total, lengths, path = len(text), iter([("", len(text))]), "tools_json"
        case _:
            return
    if total > limit:
        name, _ = max(lengths, key=lambda item: item[1])
        raise MessageTooLargeError(f"{path}{name} of trace {trace_id!r}", total, limit)


def _node_lengths(node: Node) -> Iterator[tuple[str, int]]:
    for name in ("token_ids", "mask", "is_content", "logprobs"):
        yield f".{name}", getattr(node, name).nbytes
    yield ".tools_json", len(node.tools_json)
    for name, length in _message_lengths(node.message):
        yield f".message{name}", length


def _message_lengths(message: DomainMessage) -> Iterator[tuple[str, int]]:
    """Characters, of which each is at least one byte."""
    if isinstance(message.content, str):
        yield ".content[0].text", len(message.content)
    else:
        for index, part in enumerate(message.content):
            match part:
                case TextPart(text):
                    yield f".content[{index}].text", len(text)
                case ImagePart(url):
                    yield f".content[{index}].image_url", len(url)
                case JsonPart(text):
                    yield f".content[{index}].json", len(text)
    yield ".reasoning", len(message.reasoning)
    yield ".extra_json", len(message.extra_json)
    for index, call in enumerate(message.tool_calls):
        yield f".tool_calls[{index}].arguments", len(call.arguments)


def largest_field(change: Change) -> str:
    """The path of the field of a trace that makes `change` large, e.g. `nodes[3].message.content[0].text`."""
    match change:
        case PendingSet(pending):
            return "pending" + _largest_below(wire.pending(pending))
        case NodeAdded(index, _) | CallAdded(index, _) | ErrorAdded(index, _) | LinkAdded(index, _):
            # Alone in a partial trace it has number 0 there.
            path = largest_field_of(wire.partial_trace(change))
            return path.replace("[0]", f"[{index}]", 1)
        case _:
            return largest_field_of(wire.partial_trace(change))


def largest_field_of(message: Message) -> str:
    """The path of the field that makes `message` large."""
    return _largest_below(message).removeprefix(".")


def _largest_below(message: Message) -> str:
    children: list[tuple[int, str, object]] = []
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            children += [(_size(value[key]), f".{field.name}[{key!r}]", value[key]) for key in value]
        elif field.is_repeated:
            children += [(_size(item), f".{field.name}[{index}]", item) for index, item in enumerate(value)]
        else:
            children.append((_size(value), f".{field.name}", value))
    if not children:
        return ""
    _, name, child = max(children, key=lambda item: item[0])
    return name + (_largest_below(child) if isinstance(child, Message) else "")


def _size(value: object) -> int:
    if isinstance(value, Message):
        return value.ByteSize()
    return len(value) if isinstance(value, (str, bytes)) else 8
