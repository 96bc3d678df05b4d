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

WINDOW_BYTES: Final = 128 * 1024
"""What one call into C is given: a millisecond or two of work."""

_MOST_DEPTH: Final = 200
"""Of containers each larger than a window. Answers have about six."""
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
    nested.

    Args:
        hook: makes an object of its pairs. The object at the top is made by it, too.
        window: bytes that are looked at in one call, 16 or more. A single string or number may have any
            number.

    Raises ValueError where it is no JSON, RecursionError where it nests too deeply.
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
                    f"expected no more than {_MOST_DEPTH} large lists and objects in each other"
                )
            return self._list(depth + 1) if first == "[" else self._hook(self._pairs(depth + 1))
        end = self._string_end() if first == '"' else self._number_end()
        text = self._data[self._start : end].decode("utf-8", "surrogatepass")
        try:
            value, length = self._scan(text, 0)
        except ValueError as error:  # its position is that in the text
            said = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise ValueError(f"{said} at byte {self._start}") from None
        self._start += len(text[:length].encode("utf-8", "surrogatepass"))
        self._text, self._at = "", 0
        self._move()
        return value

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
        data = self._data
        self._start = self._byte()
        end = self._start + self._window
        for _ in range(3):  # more of them are no UTF-8
            if end < len(data) and data[end] & 0xC0 == _CONTINUES:
                end -= 1
        self._text, self._at = data[self._start : end].decode("utf-8", "surrogatepass"), 0
        self._final = end >= len(data)

    def _byte(self) -> int:
        """The byte at which the place is."""
        passed = self._text[: self._at]
        return self._start + (
            len(passed) if passed.isascii() else len(passed.encode("utf-8", "surrogatepass"))
        )

    def _number_end(self) -> int:
        number = _NUMBER.match(self._data, self._start)
        return self._start if number is None else number.end()

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

    def _error(self, expected: str, offset: int = 0) -> ValueError:
        self._at += offset
        return ValueError(
            f"{expected} at byte {self._byte()}, where {self._text[self._at : self._at + 16]!r} is"
        )
