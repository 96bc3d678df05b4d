"""References to training arrays in what `env-client run --out` wrote."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from env_client.errors import InvalidRequestError
from env_client.training_arrays.excerpt import excerpt
from env_client.training_arrays.reference import INFO_KEY, ArrayReference

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


FAULTS_KEPT: Final = 3
"""Of a large file that is none, each line is a fault."""


class WorkerId(NamedTuple):
    """A worker as its references name it."""

    instance: str
    address: str


@dataclass
class FoundReferences:
    """The keys of each worker, and what was wrong with lines that could not be used, each with its number: of
    the first `FAULTS_KEPT`, and how many more there are."""

    keys: dict[WorkerId, set[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    more_faults: int = 0


def find_references(lines: Iterable[bytes]) -> FoundReferences:
    """Read JSON lines in UTF-8. Empty lines, and those of runs without an episode, have no references; what
    is no outcome of a run at all, as a task, is a fault."""
    found = FoundReferences()
    for number, line in enumerate(lines, 1):
        try:
            # All of a line before any of it counts: half of a damaged line is no episode.
            references = list(_references(json.loads(line))) if line.strip() else []
        except (ValueError, RecursionError, InvalidRequestError) as error:
            if len(found.faults) < FAULTS_KEPT:
                found.faults.append(f"line {number}: {error}")
            else:
                found.more_faults += 1
            continue
        for reference in references:
            worker = WorkerId(reference.instance, reference.address)
            found.keys.setdefault(worker, set()).add(reference.key)
    return found


def _references(outcome: Any) -> Iterator[ArrayReference]:
    """Every reference of an outcome. ValueError or InvalidRequestError for what is none."""
    if not isinstance(outcome, dict):
        raise ValueError(f"found a JSON {type(outcome).__name__}, expected an object")
    if "traces" not in outcome and "error" not in outcome:
        keys = excerpt(list(outcome))
        raise ValueError(
            f"found an object of {keys}, expected an outcome that `env-client run --out` wrote, which has "
            "'traces' or an 'error'"
        )
    for trace in _list(outcome, "traces"):
        info = trace.get("info") if isinstance(trace, dict) else None
        if not isinstance(info, dict):
            raise ValueError("a trace has no object 'info', expected one as `env-client run --out` writes it")
        for reference in _list(info, INFO_KEY):
            yield ArrayReference.of(reference)


def _list(container: dict[str, Any], name: str) -> list[Any]:
    value = container.get(name, [])
    if not isinstance(value, list):
        raise ValueError(f"{name!r} is a JSON {type(value).__name__}, expected a list")
    return value
