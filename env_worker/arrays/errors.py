"""Why training arrays were not kept, not admitted, or not given out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class ArrayKeepError(RuntimeError):
    """An episode's arrays were not kept; nothing of them is held."""


class ArrayBudgetExceededError(ArrayKeepError):
    """They fit neither into the memory budget nor into the spill folder."""


class ArraysIncompleteError(ArrayKeepError):
    """A field has a hole, and the worker keeps whole arrays only (strict)."""


class ArrayBudgetError(RuntimeError):
    """No room for the arrays of one more run. Nothing was taken; try again when arrays were released.

    Args:
        message: says what is held and what to do.
        value: bytes, or segments, that would be taken with this run.
        limit: how many of them may be.
    """

    def __init__(self, message: str, *, value: int, limit: int) -> None:
        super().__init__(message)
        self.value = value
        self.limit = limit


class ArrayAccessError(ValueError):
    """A fetch that asks for what cannot be given; the message says why."""


class ArraysNotFoundError(ArrayAccessError):
    """No arrays by that key: they were released, discarded, or never there."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"no training arrays are kept under key {key[:8]}: they were released, discarded or expired, or "
            "never there; fetch before you release"
        )


class UnknownFieldError(ArrayAccessError):
    """A field that there is not, or that was asked for twice."""

    def __init__(self, field: str, fields: Sequence[str], *, repeated: bool = False) -> None:
        what = "was asked for twice; name it once" if repeated else f"is none of {', '.join(fields)}"
        super().__init__(f"field {field[:64]!r} {what}")
        self.field = field


class TokenRangeError(ArrayAccessError):
    """A range that does not lie within the branch's tokens."""

    def __init__(self, start: int, end: int, tokens: int) -> None:
        super().__init__(
            f"token range {start} to {end} does not lie within the branch's {tokens} tokens; pass 0 <= start "
            "<= end <= tokens, as the reference says"
        )
        self.start = start
        self.end = end
        self.tokens = tokens


class FieldIncompleteError(ArrayAccessError):
    """A field that has a hole on this branch, and so is never given out."""

    def __init__(self, field: str, hole: str) -> None:
        super().__init__(
            f"field {field!r} is incomplete on this branch: {hole}; ask for the fields that the reference "
            "lists under arrays"
        )
        self.field = field
        self.hole = hole
