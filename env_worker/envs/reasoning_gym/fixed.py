"""What follows `reasoning-gym:` on the command line: the keys of a task that it fixes."""

from __future__ import annotations

import importlib
import json
import math
import os
import tomllib
from typing import TYPE_CHECKING, Any, Final

from env_worker.envs.task_fields import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.envs.reasoning_gym.catalogue import Catalogue

SUFFIXES: Final = (".json", ".toml", ".yaml", ".yml")
MAX_DESCRIPTION: Final = 200
"""Characters of what people read in a table."""

_EXAMPLE: Final = "{'dataset': 'chain_sum'}"


def fixed_keys(argument: str | None, catalogue: Catalogue) -> Mapping[str, Any]:
    """The keys that are fixed: `dataset` by its name, or what the file of that name says.

    A file is a part of a task, with `dataset` or `datasets` at least. The package's of a composite is one.
    Raises ValueError, naming the file, when it cannot be read, and when there is no dataset of that name.
    """
    if argument is None:
        return {}
    if argument in catalogue:
        return {"dataset": argument}
    if not argument.endswith(SUFFIXES):
        raise ValueError(
            f"{catalogue.unknown(argument)}; or name a file of tasks' keys, which ends in "
            + ", ".join(SUFFIXES)
        )
    suffix = next(suffix for suffix in SUFFIXES if argument.endswith(suffix))
    try:
        with open(argument, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise ValueError(
            f"{argument} cannot be read from {os.getcwd()} ({type(error).__name__}: {error.strerror}): give "
            "the path of a file that this user may read"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{argument} is not UTF-8 ({error}): save it as that") from error
    try:
        found = _parsed(suffix, text)
    except Exception as error:  # yaml's errors have no base that could be named without importing it
        said = " ".join(str(error).split())
        raise ValueError(
            f"{argument} is no {suffix[1:].upper()} ({type(error).__name__}: {said}): correct it there, or "
            "give it the suffix of what it is"
        ) from error
    if not isinstance(found, dict):
        raise ValueError(
            f"{argument} holds {shown(found)} ({type(found).__name__}), but must be an object: write keys of "
            f"a task into it, e.g. {_EXAMPLE}"
        )
    try:
        _check(found, "")
    except RecursionError as error:
        raise ValueError(f"{argument} nests too deeply, or holds itself: write it flatter") from error
    except ValueError as error:
        raise ValueError(f"{argument}: {error}") from error
    fixed: dict[str, Any] = json.loads(json.dumps(found))  # as a task comes: no keys that are numbers
    if "dataset" not in fixed and "datasets" not in fixed:
        raise ValueError(
            f"{argument} has the keys {shown(list(fixed))}, but no 'dataset', and no 'datasets' to mix: add "
            f"one of them, e.g. {_EXAMPLE}"
        )
    return fixed


def description(fixed: Mapping[str, Any]) -> str:
    """For people: what all tasks have in common, `fixed` being checked; MAX_DESCRIPTION characters at
    most."""
    if not fixed:
        return (
            "procedural reasoning tasks of the reasoning-gym package, scored by its own verifiers; each task "
            "names its dataset"
        )
    if "datasets" in fixed:
        parts = fixed["datasets"]
        what = f"a mix of {len(parts)} datasets of reasoning-gym: " + ", ".join(map(_part, parts))
    else:
        what = f"{_part({**fixed, 'name': fixed['dataset']})} of reasoning-gym"
    others = {key: value for key, value in fixed.items() if key not in ("dataset", "datasets", "params")}
    if others:
        what += f"; fixed: {_words(others)}"
    return what if len(what) <= MAX_DESCRIPTION else f"{what[: MAX_DESCRIPTION - 3]}..."


def _part(part: Mapping[str, Any]) -> str:
    told = {key: part[key] for key in ("weight",) if key in part}
    told |= part.get("params") or part.get("config") or {}
    return f"{part['name']} ({_words(told)})" if told else str(part["name"])


def _words(values: Mapping[str, Any]) -> str:
    # Of ASCII alone, and without the quotes that the JSON of `env-client describe` would escape.
    return ", ".join(f"{key} {json.dumps(value)}" for key, value in values.items()).replace('"', "'")


def _parsed(suffix: str, text: str) -> Any:
    if suffix == ".json":
        return json.loads(text)
    if suffix == ".toml":
        return tomllib.loads(text)
    return importlib.import_module("yaml").safe_load(text)  # reasoning-gym requires it


def _check(value: object, where: str) -> None:
    """ValueError, naming the key and the value, of what JSON has not: dates, infinities."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str | int):
                raise ValueError(
                    f"{where or 'it'} has the key {shown(key)} ({type(key).__name__}), but keys must be "
                    "texts, as in JSON: put it in quotes"
                )
            _check(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            _check(item, f"{where}[{place}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"key {where!r} is {value}, but must be finite: write a number, or leave it out")
    elif value is not None and not isinstance(value, str | int | float):
        raise ValueError(
            f"key {where!r} is {shown(value)} ({type(value).__name__}), but must be what JSON has: write "
            "it as a text in quotes, or as a number"
        )
