"""The limit of one message, and which field is to blame when it is exceeded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import Message

from env_worker import wire
from env_worker.domain import CallAdded, ErrorAdded, LinkAdded, NodeAdded, PendingSet

if TYPE_CHECKING:
    from env_worker.domain import Change

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Most bytes of one serialized message on every hop."""


class MessageTooLargeError(Exception):
    """One thing that must cross in one message does not fit: its run ends, every other run goes on.

    `field` is the largest field, `value` the bytes that the message would have, `limit` the most it may have.
    """

    def __init__(self, field: str, value: int, limit: int) -> None:
        super().__init__(
            f"{field} makes a message of {value} bytes, the limit of one message is {limit} bytes; "
            "make the environment write less into that field, or split it over several nodes"
        )
        self.field = field
        self.value = value
        self.limit = limit


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
