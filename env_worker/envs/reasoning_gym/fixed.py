"""What follows `reasoning-gym:` on the command line: the keys of a task that it fixes."""

from __future__ import annotations

import importlib
import json
import tomllib
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.envs.reasoning_gym.catalogue import Catalogue

SUFFIXES: Final = (".json", ".toml", ".yaml", ".yml")


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
        raise ValueError(f"{catalogue.unknown(argument)} A file of tasks' keys ends in {', '.join(SUFFIXES)}")
    try:
        with open(argument, encoding="utf-8") as file:
            found = _parsed(PurePath(argument).suffix, file.read())
        if not isinstance(found, dict):
            raise ValueError(f"it is a {type(found).__name__}, expected an object")
        # By way of JSON, as a task comes: no dates, no infinities, no keys that are numbers.
        fixed: dict[str, Any] = json.loads(json.dumps(found, allow_nan=False))
    except Exception as error:  # yaml's errors have no base that could be named without importing it
        raise ValueError(f"{argument}: {type(error).__name__}: {error}") from error
    if "dataset" not in fixed and "datasets" not in fixed:
        raise ValueError(f"{argument}: it names no 'dataset', and no 'datasets' that are mixed")
    return fixed


def _parsed(suffix: str, text: str) -> Any:
    if suffix == ".json":
        return json.loads(text)
    if suffix == ".toml":
        return tomllib.loads(text)
    return importlib.import_module("yaml").safe_load(text)  # reasoning-gym requires it
