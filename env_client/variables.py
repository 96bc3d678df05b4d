"""Finds variables that were meant as settings and are none."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def unknown_variables(names: Iterable[str], prefix: str, known: Collection[str]) -> list[str]:
    """A sentence for each of `names` that begins with `prefix` and is not among the `known` ones."""
    said = []
    settings = [name.removeprefix(prefix) for name in known]
    for name in sorted(names):
        if name.startswith(prefix) and name not in known:
            close = difflib.get_close_matches(name.removeprefix(prefix), settings, n=1)
            hint = f"did you mean {prefix}{close[0]}?" if close else "see --help for those that there are"
            said.append(f"the variable {name} is no setting and has no effect; {hint}")
    return said
