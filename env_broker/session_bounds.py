"""How much one message of a session's stream may hold, seen in its bytes before they are parsed.

A frame of two bytes is an object of fifty when it was parsed, and parsing holds up the whole process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from envtrio.v1.env_service_pb2 import Confirm, ConfirmAnswers, SessionRequest, SessionResponse

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_MORE: Final = 1_024
"""Most frames in one message, behind its first."""
MAX_LISTED: Final = 1_024
"""Most confirmations, or answers to them, in one frame."""
MAX_FIELDS: Final = 4_096
"""Most fields in one message and its frames, and in a list of confirmations that is not in the usual form.
Two for each frame are needed; a later version may have more of them."""
SMALL_BYTES: Final = 16 * 1024
"""Messages up to this size cannot hurt, and are not looked at."""

_SMALL_FRAME_BYTES: Final = 256
"""Nor can further frames up to this size."""
_DELIMITED: Final = 2
_WIDTHS: Final = {1: 8, 5: 4}
"""Bytes of a value by its wire type, where it has as many as any other."""
_VARINT_BYTES: Final = 10
_ID: Final = Confirm.REQUEST_IDS_FIELD_NUMBER << 3 | _DELIMITED
_ID_BYTES: Final = 32


class BoundsError(ValueError):
    """A message that must not be parsed: it holds too much, or is none.

    Attributes:
        field: what is too much.
        counts: its `value`, as far as it was counted, and its `limit`.
    """

    def __init__(self, message: str, field: str, **counts: int) -> None:
        super().__init__(message)
        self.field: Final = field
        self.counts: Final = counts


class Bounds:
    """The bounds of one kind of message.

    Args:
        more: number of its field `more`.
        listing: number and name of the field that has a list, and the list's name.
    """

    def __init__(self, more: int, listing: tuple[int, str, str]) -> None:
        number, name, listed = listing
        self.more: Final = more << 3 | _DELIMITED
        self.listing: Final = number << 3 | _DELIMITED
        self.listing_name: Final = name
        self.listed_name: Final = listed

    def check(self, data: bytes) -> None:
        """BoundsError if it must not be parsed. Its cost has a bound, whatever the bytes."""
        if len(data) > SMALL_BYTES:
            _Walk(self, data).frame(0, len(data), further=False)


REQUEST: Final = Bounds(
    SessionRequest.MORE_FIELD_NUMBER, (SessionRequest.CONFIRM_FIELD_NUMBER, "confirm", "request_ids")
)
"""Of a SessionRequest."""
RESPONSE: Final = Bounds(
    SessionResponse.MORE_FIELD_NUMBER,
    (SessionResponse.CONFIRM_ANSWERS_FIELD_NUMBER, "confirm_answers", "answers"),
)
"""Of a SessionResponse."""
assert Confirm.REQUEST_IDS_FIELD_NUMBER == ConfirmAnswers.ANSWERS_FIELD_NUMBER


class _Walk:
    """A look at all fields of a message and of its further frames."""

    def __init__(self, bounds: Bounds, data: bytes) -> None:
        self._bounds: Final = bounds
        self._data: Final = data
        self._seen = 0

    def frame(self, at: int, end: int, *, further: bool) -> None:
        bounds, more, listed = self._bounds, 0, 0
        for tag, start, stop in self._fields(at, end):
            if tag == bounds.more:
                more += 1
                if further:
                    raise BoundsError("more has a frame with more; put them side by side", "more.more")
                if more > MAX_MORE:
                    raise BoundsError(
                        f"more has {more} frames or more, the limit is {MAX_MORE}; send more messages",
                        "more",
                        value=more,
                        limit=MAX_MORE,
                    )
                if stop - start > _SMALL_FRAME_BYTES:
                    self.frame(start, stop, further=True)
            elif tag == bounds.listing:
                listed += self._listed(start, stop)
                if listed > MAX_LISTED:
                    name, what = bounds.listing_name, bounds.listed_name
                    raise BoundsError(
                        f"{name} has {listed} {what}, the limit is {MAX_LISTED}; send more frames",
                        f"{name}.{what}",
                        value=listed,
                        limit=MAX_LISTED,
                    )

    def _listed(self, start: int, stop: int) -> int:
        """How many there are in a list."""
        count, rest = divmod(stop - start, 2 + _ID_BYTES)
        tags, sizes = (self._data[at : stop : 2 + _ID_BYTES] for at in (start, start + 1))
        # Run ids and nothing else, as it should be, are counted without a look at each.
        if not rest and tags.count(_ID) == sizes.count(_ID_BYTES) == count:
            return count
        return sum(tag == _ID for tag, _, _ in self._fields(start, stop))

    def _fields(self, at: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Each field's tag, and where its value begins and ends."""
        data = self._data
        while at < end:
            self._seen += 1
            if self._seen > MAX_FIELDS:
                raise BoundsError(
                    f"a message of {len(data)} bytes has {self._seen} fields or more, the limit is "
                    f"{MAX_FIELDS}; send more messages",
                    "frame",
                    value=self._seen,
                    limit=MAX_FIELDS,
                )
            begin, tag = at, data[at]
            at += 1
            if tag > 0x7F:
                tag, at = self._varint(begin, end)
            kind = tag & 7
            stop = at
            if kind == _DELIMITED:
                size, at = self._varint(at, end)
                stop = at + size
            elif kind in _WIDTHS:
                stop = at + _WIDTHS[kind]
            elif kind == 0:
                _, stop = self._varint(at, end)
            if kind not in (0, 1, 2, 5) or tag >> 32 or stop > end:  # the others were never in use here
                raise _malformed(f"the field at byte {begin} is none, or cut off")
            yield tag, at, stop
            at = stop

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """The number that begins there, and where it ends."""
        value = 0
        for shift, byte in enumerate(self._data[at : min(end, at + _VARINT_BYTES)]):
            value |= (byte & 0x7F) << 7 * shift
            if byte < 0x80:
                return value, at + shift + 1
        raise _malformed(f"the number at byte {at} has no end")


def _malformed(what: str) -> BoundsError:
    return BoundsError(f"a frame cannot be decoded ({what}); use the stubs of envtrio.v1", "frame")
