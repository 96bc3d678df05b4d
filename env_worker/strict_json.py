"""JSON text of requests, read so that it means the same to every reader."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from env_worker.domain import JsonObject, JsonValue

_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class InvalidFieldError(ValueError):
    """A field of a request is not what it must be. `field` names it as the proto does."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field


def parse_json(text: str, field: str) -> JsonValue:
    """The value of JSON text that means the same to every reader.

    InvalidFieldError naming `field` for anything else: NaN, infinities and numbers beyond a double, an object
    with the same key twice, lone surrogates, too deep nesting.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_not_finite, parse_float=_finite)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as problem:
        raise InvalidFieldError(
            field, f"is not strict JSON: {problem}; mend it and send it again"
        ) from problem
    return value


def _unique(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in value if keys.count(key) > 1)
        raise ValueError(
            f"an object has the key {twice[:80]!r} twice, and readers disagree on which one counts"
        )
    return value


def _finite(text: str) -> float:
    return number if math.isfinite(number := float(text)) else _not_finite(text)


def _not_finite(text: str) -> NoReturn:
    raise ValueError(f"the number {text[:80]} is not finite, expected one that a double holds")
