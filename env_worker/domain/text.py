"""Text and JSON as they may cross the wire: UTF-8, finite numbers, nothing that a reader would choke on."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

JsonValue: TypeAlias = Any
"""What `json.loads` returns. Not a recursive alias: each read of `info` or `task` would then need a cast."""

JsonObject: TypeAlias = dict[str, Any]


def check_text(value: object, field: str) -> None:
    """TypeError if `value` is not a str, ValueError if it holds lone surrogates, which UTF-8 cannot carry."""
    if not isinstance(value, str):
        raise TypeError(f"{field} is of type {type(value).__name__}, expected str")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{field} holds the lone surrogate {value[error.start]!r} at character {error.start}, which "
                'UTF-8 cannot carry; replace it, for example with value.encode("utf-8", "replace").decode()'
            ) from error


def clean_text(value: str) -> str:
    """`value` with each lone surrogate replaced by `?`."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def encode_json(value: JsonValue, field: str) -> str:
    """`value` as compact JSON text.

    TypeError naming `field` if it is not JSON (an array, a set, an object), ValueError if it holds NaN, an
    infinity, a lone surrogate, a cycle, or nests too deeply.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except TypeError as error:
        raise TypeError(
            f"{field} is not JSON: {error}; convert it to dicts, lists, str, numbers first"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{field} is not JSON: {error}; replace the value that JSON cannot express"
        ) from error
    check_text(text, field)
    return text


def _no_json(text: str) -> None:
    raise ValueError(f"{text} is no JSON number")


def decode_json(text: str, field: str, kind: type[dict[str, Any]] | type[list[Any]]) -> JsonValue:
    """The JSON `kind` that `text` holds; ValueError naming `field` if it holds anything else."""
    check_text(text, field)
    try:
        value = json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{field} is not JSON text: {error}; pass what json.dumps returns") from error
    if not isinstance(value, kind):
        expected = "object" if kind is dict else "array"
        raise ValueError(f"{field} holds a JSON {type(value).__name__}, expected an {expected}")
    return value
