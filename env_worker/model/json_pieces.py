"""JSON of any size, decoded so that other threads get their turn meanwhile.

`json.loads` holds the interpreter from the first byte to the last, for seconds where there are a hundred
megabytes. Here no single call into C is given more than a window of the data: what is larger is walked from
element to element.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

Pairs: TypeAlias = list[tuple[str, Any]]


class JsonLimitError(ValueError):
    """The data may be JSON, but is built as no answer is: it was given up at a limit."""


WINDOW_BYTES: Final = 128 * 1024
"""What one call into C is given: a millisecond or two of work."""

MOST_KEYS: Final = 1 << 20
"""Keys of one object that is larger than a window. It is made of them in one call."""
_MOST_DEPTH: Final = 200
"""Of containers each larger than a window. Answers have about six."""
_MOST_DIGITS: Final = 1 << 20
"""Bytes of a number."""
_HALF: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")
"""A character of two escapes begins with such a one."""
_MARGIN: Final = 3
"""A number that ends so near to the end of a window might go on behind it: `1`, where `1e+9` is cut."""
_PAUSE: Final = 1024
"""Elements that are taken one by one after the first run of a list that turned out to be none."""

_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_NUMBER: Final = re.compile(rb"[-+.0-9eE]*")
_CLOSED: Final = {"[": "],", "{": "},"}
_CONTINUES: Final = 0x80
"""The two highest bits of all bytes of a character in UTF-8 but the first are 10."""


class LargeObject(dict[str, Any]):
    """What `decode` gives for a JSON object: to make something of it may take a while, too."""


def decode(data: bytes | bytearray, hook: Callable[[Pairs], Any] = dict, window: int = WINDOW_BYTES) -> Any:
    """What `json.loads(data, object_pairs_hook=hook)` returns, an object at the top as a LargeObject.

    A container that is larger than the window, within 200 others, is refused, however deep smaller ones are
    nested, and so is an object that is, with more than MOST_KEYS keys.

    Args:
        hook: makes an object of its pairs. The object at the top is made by it, too.
        window: bytes that are looked at in one call, 16 or more. A number may have 1 MiB.

    Raises ValueError where it is no JSON, JsonLimitError beyond a limit, RecursionError where it nests too
    deeply.
    """
    encoding = json.detect_encoding(data)
    if encoding != "utf-8":
        data = data.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
    value = _Walk(data, hook, window).whole()
    return LargeObject(value) if isinstance(value, dict) else value


class _Walk:
    """A place in the data, and the text of the window around it."""

    def __init__(self, data: bytes | bytearray, hook: Callable[[Pairs], Any], window: int) -> None:
        self._data: Final = data
        self._hook: Final = hook
        self._window: Final = window
        self._scan: Final = json.JSONDecoder(object_pairs_hook=hook).raw_decode
        self._start = 0
        """Byte at which the window starts."""
        self._text = ""
        self._at = 0
        """Character of `_text` that is next."""
        self._final = False
        """Whether there is nothing behind the window."""
        self._move()

    def whole(self) -> Any:
        value = self._value(0)
        if self._next():
            raise self._error("expected nothing more")
        return value

    def _value(self, depth: int) -> Any:
        self._next()
        while True:
            try:
                value, end = self._scan(self._text, self._at)
            except (ValueError, RecursionError):
                pass  # it is no JSON, or the window cuts it off
            else:
                if self._final or end + _MARGIN <= len(self._text):
                    self._at = end
                    return value
            if not self._at:
                return self._large(depth)
            self._move()

    def _large(self, depth: int) -> Any:
        """The value at the start of the window, that does not end in it."""
        first = self._text[:1]
        if first and first in "[{":
            if depth == _MOST_DEPTH:
                raise self._error(
                    f"expected no more than {_MOST_DEPTH} large lists and objects in each other",
                    kind=JsonLimitError,
                )
            return self._list(depth + 1) if first == "[" else self._hook(self._pairs(depth + 1))
        value, self._start = self._string() if first == '"' else self._number()
        self._text, self._at = "", 0
        self._move()
        return value

    def _number(self) -> tuple[Any, int]:
        """The number, or whatever else is no container and no string, at the start of the window; and the
        byte behind it."""
        found = _NUMBER.match(self._data, self._start, self._start + _MOST_DIGITS)
        text = self._decoded(self._start, self._start if found is None else found.end())
        if len(text) == _MOST_DIGITS:
            raise self._error(f"expected a number of fewer than {_MOST_DIGITS} bytes", kind=JsonLimitError)
        value, length = self._scanned(text, self._start)
        return value, self._start + length  # a number is ASCII

    def _string(self) -> tuple[str, int]:
        """The string at the start of the window, and the byte behind it."""
        end = self._string_end() - 1
        place, pieces = self._start + 1, []
        while place < end:
            cut = end if place + self._window >= end else self._cut(place, place + self._window)
            pieces.append(self._scanned(f'"{self._decoded(place, cut)}"', self._start)[0])
            place = cut
        return "".join(pieces), end + 1

    def _cut(self, place: int, cut: int) -> int:
        """The last byte, up to `cut`, in front of which what began at `place` in a string may end: neither a
        character nor an escape is cut, nor a character of two escapes."""
        cut = self._within(cut)
        escape = self._data.rfind(b"\\", max(place, cut - 5), cut)
        if escape >= 0 and self._escapes(place, escape):
            cut = escape if self._data[escape + 1 : escape + 2] == b"u" or escape + 1 == cut else cut
        half = cut - 6
        if half > place and _HALF.match(self._data, half) and self._escapes(place, half):
            cut = half
        return cut

    def _escapes(self, place: int, at: int) -> bool:
        """Whether the backslash at `at` begins an escape, of a string that has been read up to `place`."""
        passed = bytes(self._data[place : at + 1])
        return (len(passed) - len(passed.rstrip(b"\\"))) % 2 == 1

    def _scanned(self, text: str, start: int) -> tuple[Any, int]:
        try:
            return self._scan(text, 0)
        except ValueError as error:  # its position is that in the text
            said = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise ValueError(f"{said} at byte {start}") from None

    def _decoded(self, start: int, end: int) -> str:
        return self._data[start:end].decode("utf-8", "surrogatepass")

    def _within(self, end: int) -> int:
        """`end`, or the start of the character in which it is."""
        for _ in range(3):  # more of them are no UTF-8
            if end < len(self._data) and self._data[end] & 0xC0 == _CONTINUES:
                end -= 1
        return end

    def _list(self, depth: int) -> list[Any]:
        values: list[Any] = []
        self._at += 1
        if self._next() == "]":
            self._at += 1
            return values
        alone, pause = 0, _PAUSE
        while True:
            self._next()
            if alone:
                values.append(self._value(depth))
                alone -= 1
            elif (run := self._run()) is not None:
                values += run
            else:  # each is a window's work in vain
                alone, pause = pause, 4 * pause
                continue
            after = self._next()
            self._at += 1
            if after == "]":
                return values
            if after != ",":
                raise self._error("expected ',' or ']'", -1)

    def _run(self) -> list[Any] | None:
        """As many elements as the window has, if all are scalars, or containers of such; None if not. They
        end at a comma, or with the list: if that is one within a string, or deeper in a container, what is
        before it is no list."""
        if (end := self._run_end()) < 0 and self._at:
            self._move()
            end = self._run_end()
        if end < 0:
            return None
        try:
            run, length = self._scan(f"[{self._text[self._at : end]}]", 0)
        except (ValueError, RecursionError):
            return None
        if not run or length != end - self._at + 2:
            return None
        self._at = end
        return run  # type: ignore[no-any-return]

    def _run_end(self) -> int:
        text, at = self._text, self._at
        if (closed := _CLOSED.get(text[at : at + 1])) is not None:
            end = text.rfind(closed, at)
            return end + 1 if end >= 0 else end
        end = text.find("]", at)
        return end if end >= 0 else text.rfind(",", at)

    def _pairs(self, depth: int) -> Pairs:
        pairs: Pairs = []
        self._at += 1
        if self._next() == "}":
            self._at += 1
            return pairs
        while True:
            if self._next() != '"':
                raise self._error("expected a key")
            key = self._value(depth)
            if self._next() != ":":
                raise self._error("expected ':'")
            self._at += 1
            pairs.append((key, self._value(depth)))
            if len(pairs) > MOST_KEYS:
                raise self._error(f"expected no more than {MOST_KEYS} keys in an object", kind=JsonLimitError)
            after = self._next()
            self._at += 1
            if after == "}":
                return pairs
            if after != ",":
                raise self._error("expected ',' or '}'", -1)

    def _next(self) -> str:
        """The next character that is no blank, which is where the place is then; "" at the end."""
        while True:
            first = self._text[self._at : self._at + 1]
            if first > " ":
                return first
            blanks = _BLANKS.match(self._text, self._at)
            if blanks is not None:
                self._at = blanks.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if self._final:
                return ""
            self._move()

    def _move(self) -> None:
        """Let the window start at the place."""
        self._start = self._byte()
        end = self._within(self._start + self._window)
        self._text, self._at = self._decoded(self._start, end), 0
        self._final = end >= len(self._data)

    def _byte(self) -> int:
        """The byte at which the place is."""
        passed = self._text[: self._at]
        return self._start + (
            len(passed) if passed.isascii() else len(passed.encode("utf-8", "surrogatepass"))
        )

    def _string_end(self) -> int:
        """Where the string ends that starts at the window: the byte behind its closing quote."""
        place = self._start + 1
        if (quote := self._data.find(b'"', place)) >= 0 and self._data.find(b"\\", place, quote) < 0:
            return quote + 1
        while place < len(self._data):
            # Both of the same length as what they stand for. Backslashes go first: pairs of them escape none.
            piece = self._data[place : place + self._window].replace(b"\\\\", b"__").replace(b'\\"', b"__")
            if (quote := piece.find(b'"')) >= 0:
                return place + quote + 1
            place += len(piece) - (piece.endswith(b"\\") and len(piece) > 1)
        raise self._error("expected the string to end")

    def _error(self, expected: str, offset: int = 0, kind: type[ValueError] = ValueError) -> ValueError:
        self._at += offset
        return kind(f"{expected} at byte {self._byte()}, where {self._text[self._at : self._at + 16]!r} is")
