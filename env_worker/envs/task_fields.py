"""Reads the fields of a task, refusing what an environment does not understand."""

from __future__ import annotations

import math
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from env_worker.domain import InvalidTaskError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SHOWN = 80


class TaskFields:
    """The fields of `task`, one by one. Every refusal is an InvalidTaskError naming key, value and limit.

    `within` is where in the whole task these are, before each key: "datasets[0].".
    """

    def __init__(self, task: Mapping[str, Any], known: Sequence[str], within: str = "") -> None:
        for key in task:
            if key not in known:
                close = get_close_matches(key, known, n=1)
                hint = f" (did you mean {close[0]!r}?)" if close else ""
                raise InvalidTaskError(
                    f"task key {shown(within + key)} is unknown{hint}: remove it, or use one of "
                    + ", ".join(known)
                )
        self._task = task
        self._within = within

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        """An integer in [low, high]; a bool is none."""
        value = self._task.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong_type(key, f"an integer between {low} and {high}")
        if not low <= value <= high:
            raise _out_of_range(self._within + key, value, low, high)
        return value

    def number(self, key: str, default: float, low: float, high: float) -> float:
        """A finite number in [low, high]."""
        value = self._task.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong_type(key, f"a number between {low} and {high}")
        if not (math.isfinite(value) and low <= value <= high):
            raise _out_of_range(self._within + key, value, low, high)
        return float(value)

    def text(self, key: str, default: str | None) -> str:
        """A string; required when `default` is None."""
        value = self._task.get(key, default)
        if not isinstance(value, str):
            raise self._wrong_type(key, "a string")
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        """An object, empty by default."""
        value = self._task.get(key, {})
        if not isinstance(value, dict):
            raise self._wrong_type(key, "an object")
        return value

    def mappings(self, key: str) -> list[dict[str, Any]]:
        """A list of at least one object; required."""
        value = self._task.get(key)
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            raise self._wrong_type(key, "a list of at least one object")
        return value

    def is_absent_or_null(self, key: str) -> bool:
        return self._task.get(key) is None

    def _wrong_type(self, key: str, wanted: str) -> InvalidTaskError:
        where = self._within + key
        if key not in self._task:
            return InvalidTaskError(f"task key {where!r} is missing: give {wanted}")
        value = self._task[key]
        return InvalidTaskError(
            f"task key {where!r} is {shown(value)} ({type(value).__name__}), but must be {wanted}"
        )


def shown(value: object) -> str:
    """`value` for an error message, cut to a readable length."""
    try:
        text = repr(value)
    except ValueError:  # an integer of too many digits to print
        text = f"a {type(value).__name__} too long to print"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _out_of_range(key: str, value: float, low: float, high: float) -> InvalidTaskError:
    return InvalidTaskError(f"task key {key!r} is {shown(value)}, but must be between {low} and {high}")
