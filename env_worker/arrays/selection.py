"""What a fetch asks for, checked against the branch that it asks of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from env_worker.arrays.errors import FieldIncompleteError, TokenRangeError, UnknownFieldError
from env_worker.domain import TRAINING_ARRAY_FIELDS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from env_worker.arrays.branch import BranchLayout


class Selection(NamedTuple):
    """Fields and tokens of one branch."""

    fields: tuple[str, ...]
    start: int
    end: int
    """One past the last token."""


def select(
    branch: BranchLayout, kept: Collection[str], fields: Sequence[str], start: int, end: int | None
) -> Selection:
    """What is asked for. No fields: all that are complete; no `end`: that of the branch.

    UnknownFieldError, TokenRangeError, FieldIncompleteError, also of a field that is not among those `kept`.
    """
    for position, field in enumerate(fields):
        if field not in TRAINING_ARRAY_FIELDS:
            raise UnknownFieldError(field, TRAINING_ARRAY_FIELDS)
        if field in fields[:position]:
            raise UnknownFieldError(field, TRAINING_ARRAY_FIELDS, repeated=True)
    end = branch.tokens if end is None else end
    if not 0 <= start <= end <= branch.tokens:
        raise TokenRangeError(start, end, branch.tokens)
    holes = {
        field: branch.incomplete.get(field, "the worker keeps other fields only")
        for field in TRAINING_ARRAY_FIELDS
        if field in branch.incomplete or field not in kept
    }
    for field in fields:
        if field in holes:
            raise FieldIncompleteError(field, holes[field])
    chosen = tuple(fields) or tuple(field for field in TRAINING_ARRAY_FIELDS if field not in holes)
    return Selection(chosen, start, end)
