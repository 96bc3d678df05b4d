"""The limit of one message, and which field is to blame when it is exceeded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from envtrio.v1 import episode_pb2
from google.protobuf.message import Message

from env_worker import wire
from env_worker.delta.records import record
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
        case NodeAdded(_, node):
            total = _node_bytes(node)
        case PendingSet(Pending(messages)):
            total = sum(map(_message_bytes, messages))
        case InfoSet(_, text) | ToolsSet(text):
            total = len(text)
        case _:
            return
    if total > limit:
        name, _ = max(_lengths(change), key=lambda item: item[1])
        raise MessageTooLargeError(f"{name} of trace {trace_id!r}", total, limit)


def _node_bytes(node: Node) -> int:
    streams = node.token_ids.nbytes + node.mask.nbytes + node.is_content.nbytes + node.logprobs.nbytes
    return streams + len(node.tools_json) + _message_bytes(node.message)


def _message_bytes(message: DomainMessage) -> int:
    if isinstance(message.content, str) and not message.tool_calls:  # as most are
        return len(message.content) + len(message.reasoning) + len(message.extra_json)
    return sum(length for _, length in _message_lengths(message))


def _lengths(change: Change) -> Iterator[tuple[str, int]]:
    match change:
        case NodeAdded(index, node):
            for name in ("token_ids", "mask", "is_content", "logprobs"):
                yield f"nodes[{index}].{name}", getattr(node, name).nbytes
            yield f"nodes[{index}].tools_json", len(node.tools_json)
            for name, length in _message_lengths(node.message):
                yield f"nodes[{index}].message{name}", length
        case PendingSet(Pending(messages)):
            for message in messages:
                for name, length in _message_lengths(message):
                    yield f"pending.messages[]{name}", length
        case InfoSet(key, text):
            yield f"info_json[{key!r}]", len(text)
        case ToolsSet(text):
            yield "tools_json", len(text)


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
    if isinstance(change, PendingSet):
        return "pending" + _largest_below(wire.pending(change.pending))
    path = largest_field_of(episode_pb2.Trace.FromString(record(change)))
    if isinstance(change, (NodeAdded, CallAdded, ErrorAdded, LinkAdded)):
        # Alone in a partial trace it has number 0 there.
        return path.replace("[0]", f"[{change.index}]", 1)
    return path


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
