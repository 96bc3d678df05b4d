"""Values out of a response's JSON, which may hold anything anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from env_worker.domain.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from env_worker.domain import Float32Array, Int32Array

MAX_INT32: Final = 2**31 - 1
MAX_NAME: Final = 256
"""Characters of a word of the engine: a model's name, a version of weights, a finish reason."""
_NO_OBJECT: Final[dict[str, Any]] = {}
_SHOWN: Final = 40
_PIECE: Final = 1 << 18
"""Values that one call makes an array of: some 10 ms, in which no other thread runs."""


class FieldError(Exception):
    """What a field holds is not what its API promises; the message is the reason of a hole."""


ABSENT: Final = "the response has no "


class AbsentError(FieldError):
    """The response does not have the field at all, or null in its place."""


def get_object(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object at `key`; an empty one where there is none."""
    value = parent.get(key)
    return value if isinstance(value, dict) else _NO_OBJECT


def get_text(parent: Mapping[str, Any], key: str, most: int | None = None) -> str:
    """The text at `key`, or its first `most` characters, without lone surrogates; "" where there is none."""
    value = parent.get(key)
    return clean_text(value[:most]) if isinstance(value, str) else ""


def get_name(parent: Mapping[str, Any], key: str) -> str:
    """As `get_text`, of something short: what is over MAX_NAME characters is cut."""
    return get_text(parent, key, MAX_NAME)


def get_count(parent: Mapping[str, Any], key: str) -> int | None:
    """The count at `key`, from 0 to MAX_INT32; None where there is none."""
    value = parent.get(key)
    return value if type(value) is int and 0 <= value <= MAX_INT32 else None


def get_list(parent: Mapping[str, Any], key: str, length: int | None = None) -> list[Any]:
    """The list at `key`, with one entry for each of `length` sampled tokens. FieldError if it is none."""
    value = parent.get(key)
    if value is None:
        raise AbsentError(f"{ABSENT}{key}")
    if not isinstance(value, list):
        raise FieldError(f"{key} is {shown(value)}, expected a list")
    if length is not None and len(value) != length:
        raise FieldError(f"{key} has {len(value)} entries, expected {length}: one for each sampled token")
    return value


def only(values: Iterable[Any], *kinds: type) -> bool:
    """Whether all are of these very types: a bool is no int here."""
    return set(map(type, values)) <= set(kinds)


def integers(values: list[Any], what: str, limit: int = MAX_INT32) -> Int32Array:
    """int32 `[n]` of integers from 0 to `limit`. FieldError if there is anything else."""
    if len(values) > _PIECE:
        return np.concatenate([integers(piece, what, limit) for piece in _pieces(values)])
    if not only(values, int):
        raise FieldError(f"{what} holds {shown(_first(values, int))}, expected integers")
    try:
        array = np.array(values, np.int64)
    except OverflowError:
        raise FieldError(f"{what} holds an integer beyond 64 bits, expected 0 to {limit}") from None
    if array.size and not (array.min() >= 0 and array.max() <= limit):
        wrong = array[(array < 0) | (array > limit)][0]
        raise FieldError(f"{what} holds {wrong}, expected 0 to {limit}")
    return array.astype(np.int32)


def numbers(values: list[Any], what: str) -> NDArray[np.float64]:
    """float64 `[n]` of numbers, NaN where null stands for one. FieldError if there is anything else."""
    if len(values) > _PIECE:
        return np.concatenate([numbers(piece, what) for piece in _pieces(values)])
    if not only(values, float, int, type(None)):
        raise FieldError(f"{what} holds {shown(_first(values, float, int, type(None)))}, expected numbers")
    try:
        return np.array(values, np.float64)
    except OverflowError:
        raise FieldError(f"{what} holds an integer beyond what a double holds") from None


def as_float32(values: NDArray[np.float64]) -> Float32Array:
    """Nearest float32 values."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def shown(value: Any) -> str:
    """`value` as a message may have it: its type, and how it begins if it is short by nature."""
    if isinstance(value, (bool, float)) or value is None:
        return repr(value)
    if isinstance(value, int):  # repr refuses very long ones
        return repr(value) if value.bit_length() <= 64 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, str):
        return repr(clean_text(value[:_SHOWN]))
    return f"a JSON {'object' if isinstance(value, dict) else 'array'}"


def _pieces(values: list[Any]) -> Iterator[list[Any]]:
    return (values[start : start + _PIECE] for start in range(0, len(values), _PIECE))


def _first(values: list[Any], *kinds: type) -> Any:
    return next(value for value in values if type(value) not in kinds)
