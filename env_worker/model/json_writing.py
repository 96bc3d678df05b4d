"""JSON of any size, written so that other threads get their turn meanwhile.

The counterpart of `json_pieces`: no single call into C is given more than a window of text or some thousand
values.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

WINDOW: Final = 128 * 1024
"""Characters that are written in one call: a millisecond's work, or less."""
_MOST_VALUES: Final = 1 << 13
_RUN: Final = 1 << 10
"""Elements of a large list that are looked at together."""

_dumps: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def is_large(value: object) -> bool:
    """Whether `value` takes more than one call to write. No more of it is looked at than one call writes."""
    level, values, size = [value], 0, 0
    while level:
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                size += len(item)
            elif isinstance(item, dict | list | tuple):
                values += len(item)
                if values <= _MOST_VALUES:
                    below += item
                    if isinstance(item, dict):
                        below += item.values()
            if values > _MOST_VALUES or size > WINDOW:
                return True
        level = below
    return False


def write(value: object) -> bytes:
    """`value` as compact JSON in UTF-8, as `json.dumps(value, ensure_ascii=False, allow_nan=False)` has it.

    TypeError if it is not JSON, ValueError if it holds NaN, an infinity or a lone surrogate, RecursionError
    if it nests too deeply.
    """
    return b"".join([piece.encode() for piece in _pieces(value)])


def _pieces(value: Any) -> Iterator[str]:
    if not is_large(value):
        yield _dumps(value)
    elif isinstance(value, str):
        yield '"'
        for at in range(0, len(value), WINDOW):
            yield _dumps(value[at : at + WINDOW])[1:-1]
        yield '"'
    elif isinstance(value, dict):
        sign = "{"
        for key, item in value.items():
            yield sign
            yield from _pieces(key) if isinstance(key, str) else (_dumps({key: 0})[1:-3],)
            yield ":"
            yield from _pieces(item)
            sign = ","
        yield "}"
    else:
        sign = "["
        for at in range(0, len(value), _RUN):
            run = value[at : at + _RUN]
            if is_large(run):
                for item in run:
                    yield sign
                    yield from _pieces(item)
                    sign = ","
            else:
                yield sign
                yield _dumps(run)[1:-1]
                sign = ","
        yield "]"
