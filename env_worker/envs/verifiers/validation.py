"""What pydantic says of data that do not fit, in a line."""

from __future__ import annotations

from typing import Any, Final

from env_worker.envs.task_fields import shown

_SAID: Final = 3


def said(error: Any, what: str, below: tuple[str, ...] = ()) -> str:
    """The first of what a pydantic ValidationError has to say: each field's path, its value, and what is
    wrong with it. `what` names such a field, `below` is where in the whole the data lie."""
    problems = error.errors(include_url=False)
    lines = [
        f"{what} {'.'.join(map(str, (*below, *problem['loc']))) or '(all of it)'!r} is "
        + ("missing" if problem["type"] == "missing" else f"{shown(problem['input'])}: {problem['msg']}")
        for problem in problems[:_SAID]
    ]
    more = len(problems) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more else "")
