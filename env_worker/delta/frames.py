"""Serialized protobuf messages laid into one another, without being parsed again.

A field that holds a message is its tag, the length, and the message's own bytes; and whatever the order in
which fields come, merging is laying end to end. So what protobuf has encoded once is put together by joining
bytes.
"""

from __future__ import annotations

from typing import Final

_LENGTH_DELIMITED: Final = 2
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))


def varint(value: int) -> bytes:
    """`value`, 0 or more, as protobuf writes a length or a tag."""
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def tag(field_number: int) -> bytes:
    """What begins a field that holds a message, a text or bytes."""
    return varint(field_number << 3 | _LENGTH_DELIMITED)


def delimited(field_tag: bytes, payload: bytes) -> bytes:
    """One field: `field_tag`, as `tag` gives it, and what the field holds."""
    return field_tag + varint(len(payload)) + payload
