"""The beginning of a protobuf field with a length, for messages that are laid out by hand."""

from __future__ import annotations

_LENGTH_DELIMITED = 2


def tag(field: int) -> bytes:
    """Of a field with a length, as messages and bytes are; `field` is below 16."""
    return bytes((field << 3 | _LENGTH_DELIMITED,))


def varint(number: int) -> bytes:
    """A length, or any number from 0 on, as protobuf writes it."""
    if number < 0x80:
        return bytes((number,))
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
