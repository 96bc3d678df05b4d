"""What one message of a session may hold, seen in its bytes, before they become objects.

Parsed, a frame of two bytes takes fifty, and nothing else runs while 64 MiB of them are parsed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from envtrio.v1 import env_service_pb2 as pb
from envtrio.v1 import errors_pb2
from google.protobuf.message import DecodeError

from env_worker.status import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_MORE: Final = 1_024
"""Most frames in the `more` of one request."""
MAX_CONFIRMED: Final = 1_024
"""Most request_ids in one Confirm frame."""
MAX_FIELDS: Final = 4_096
"""Most fields of a message and its frames. A frame has one; the rest is for what later clients may add."""
SMALL_BYTES: Final = 16 * 1024
"""A message of so many bytes cannot hurt: what is wrong with it is seen when it was parsed."""

_DELIMITED: Final = 2
_MORE: Final = pb.SessionRequest.MORE_FIELD_NUMBER << 3 | _DELIMITED
_CONFIRM: Final = pb.SessionRequest.CONFIRM_FIELD_NUMBER << 3 | _DELIMITED
_ID: Final = pb.Confirm.REQUEST_IDS_FIELD_NUMBER << 3 | _DELIMITED
_ID_BYTES: Final = 32
_ID_FIELD_BYTES: Final = 2 + _ID_BYTES
_FIXED: Final = {0: 0, 1: 8, 5: 4}
"""Bytes of a value by its wire type; a varint, whose are its own affair, none."""
_MAX_VARINT_BYTES: Final = 10


def check_bounds(data: bytes) -> None:
    """Refusal if a serialized SessionRequest holds more than it may, DecodeError if it is none. Takes a few
    milliseconds at most, whatever `data` is."""
    if len(data) > SMALL_BYTES:
        _Walk(data).frame(0, len(data), inner=False)


def too_many_more(count: object) -> Refusal:
    """`more` has `count` frames."""
    return _invalid(f"`more` has {count} frames, the limit is {MAX_MORE}; send several messages", "more")


def more_in_more(count: object) -> Refusal:
    """A frame in `more` has `count` in one of its own."""
    return _invalid(
        f"a frame in `more` has {count} in a `more` of its own; put all frames into the message's", "more"
    )


def too_many_confirmed(count: int) -> Refusal:
    """A `confirm` has `count` ids."""
    return _invalid(
        f"`confirm` has {count} request_ids, the limit is {MAX_CONFIRMED}; send several",
        "confirm.request_ids",
    )


class _Walk:
    """Goes from field to field of a message, of the frames in it, and of what these confirm."""

    def __init__(self, data: bytes) -> None:
        self._data: Final = data
        self._left = MAX_FIELDS

    def frame(self, start: int, end: int, *, inner: bool) -> None:
        more = 0
        for tag, first, behind in self._fields(start, end):
            if tag == _CONFIRM:
                self._confirm(first, behind)
            elif tag == _MORE:
                if inner:
                    raise more_in_more("1 or more")
                more += 1
                if more > MAX_MORE:
                    raise too_many_more(f"{more} or more")
                self.frame(first, behind, inner=True)

    def _confirm(self, start: int, end: int) -> None:
        count, rest = divmod(end - start, _ID_FIELD_BYTES)
        tags, sizes = (self._data[first:end:_ID_FIELD_BYTES] for first in (start, start + 1))
        # Nothing but well-formed ids, as it should be, needs no steps.
        if rest or tags.count(_ID) < count or sizes.count(_ID_BYTES) < count:
            count = sum(tag == _ID for tag, _, _ in self._fields(start, end))
        if count > MAX_CONFIRMED:
            raise too_many_confirmed(count)

    def _fields(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """The fields between two places: each one's tag, and where its value begins and ends."""
        while start < end:
            self._left -= 1
            if self._left < 0:
                raise _invalid(
                    f"a message of {len(self._data)} bytes has over {MAX_FIELDS} fields, the limit is "
                    f"{MAX_FIELDS}; send several messages of whole frames",
                    "frame",
                )
            tag, first = self._varint(start, end)
            kind = tag & 7
            if tag >= 1 << 32:
                raise DecodeError(f"a tag at byte {start} that is no tag")
            if kind == _DELIMITED:
                size, first = self._varint(first, end)
                behind = first + size
            elif kind in _FIXED:
                behind = first + _FIXED[kind] if kind else self._varint(first, end)[1]
            else:  # groups were never in these protos
                raise DecodeError(f"wire type {kind} at byte {start}")
            if behind > end:
                raise DecodeError(f"the field at byte {start} is cut off")
            yield tag, first, behind
            start = behind

    def _varint(self, start: int, end: int) -> tuple[int, int]:
        """The number that begins there, and where it ends."""
        if start < end and (byte := self._data[start]) < 0x80:
            return byte, start + 1
        value = 0
        for count, byte in enumerate(self._data[start : min(end, start + _MAX_VARINT_BYTES)]):
            value |= (byte & 0x7F) << 7 * count
            if byte < 0x80:
                return value, start + count + 1
        raise DecodeError(f"the number at byte {start} has no end")


def _invalid(message: str, field: str) -> Refusal:
    return Refusal(errors_pb2.ERROR_REASON_INVALID_REQUEST, message, field=field)
