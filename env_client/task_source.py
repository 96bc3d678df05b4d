"""What `env-client tasks --dataset` names: a dataset of reasoning-gym, or a file that has one or several."""

from __future__ import annotations

import importlib
import json
import tomllib
from difflib import get_close_matches
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from env_client.config import SettingsError
from env_client.task_set import Part, TaskSet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SUFFIXES: Final = (".json", ".toml", ".yaml", ".yml")
# What a worker's environment takes.
MAX_TASKS: Final = 1_000_000
MAX_SEED: Final = 2**32 - 1
MIN_WEIGHT: Final = 1e-6
MAX_WEIGHT: Final = 1e6
DEFAULT_SIZE: Final = 500
"""Of most of the package's datasets, and of its mixes."""

_PASSED_ON: Final = ("max_tries", "system_prompt")
_OF_ONE: Final = ("dataset", "datasets", "params", "seed", *_PASSED_ON)
_OF_A_MIX: Final = ("datasets", "size", "seed", *_PASSED_ON)
_OF_A_PART: Final = ("name", "weight", "params", "config")


def read_task_set(
    source: str, params: Mapping[str, Any] | None = None, seed: int | None = None, count: int | None = None
) -> TaskSet:
    """The tasks that `source` names: of a dataset, or of a file with a part of a task, but its index, in it.

    Args:
        source: the dataset's name, or a path that ends in one of SUFFIXES. Such a file serves as well after
            `env-worker serve --env reasoning-gym:`, and may be the package's own of a composite.
        params: of the named dataset. A file has its own.
        seed: of the entries; None: the file's, or 0.
        count: how many tasks; None: as many as the dataset has entries.

    Raises:
        SettingsError: naming flag, key, value, limit and next step. Names are not looked up.
    """
    if source.endswith(SUFFIXES):
        if params is not None:
            raise SettingsError(f"--params is given beside a file; write them into {source}")
        given = _loaded(source)
    else:
        given = {"dataset": source, "params": _as_json("--params", params or {})}
    is_mix = "datasets" in given
    if is_mix and "dataset" in given:
        raise SettingsError(
            f"--dataset {source}: dataset ({repr(given['dataset'])[:80]}) and datasets are both given, but a "
            "task is of one dataset or of a mix; remove one of them"
        )
    if "index" in given:
        raise SettingsError(
            f"--dataset {source}: index ({repr(given['index'])[:80]}) fixes one entry, and a task is written "
            "for each; leave it out, or serve the file as it is (env-worker serve --env reasoning-gym:FILE)"
        )
    fields = _Fields(f"--dataset {source}: ", given, _OF_A_MIX if is_mix else _OF_ONE)
    if seed is None:
        seed = fields.integer("seed", 0, 0, MAX_SEED)
    if is_mix:
        parts = _parts(fields, source, seed)
        size = fields.integer("size", None, 1, MAX_TASKS) if "size" in given else None
        sizes = [(part.name, part.params["size"]) for part in parts if "size" in part.params]
    else:
        parts = (_part(fields, fields.text("dataset"), "params", may_seed=False),)
        size = parts[0].params.get("size")
        sizes = []
    if count is None:
        count = DEFAULT_SIZE if size is None else size
    limit = MAX_TASKS if size is None else size
    if count > limit:
        raise SettingsError(
            f"--count is {count}, but the dataset has {limit} entries; "
            + ("lower it" if size is None else "raise its size")
            + ", or take another --seed for more"
        )
    size = max(DEFAULT_SIZE, count) if size is None else size
    for name, own in sizes:
        if own < size:
            raise SettingsError(
                f"--dataset {source}: {name!r} has a size of {own}, but any of the mix's {size} entries may "
                "be of it; leave it out, or lower the mix's own"
            )
    passed_on: dict[str, Any] = {key: given[key] for key in _PASSED_ON if key in given}
    return TaskSet(parts, is_mix, seed, size, count, passed_on)


def _parts(fields: _Fields, source: str, seed: int) -> tuple[Part, ...]:
    parts: dict[str, Part] = {}
    for place, given in enumerate(fields.objects("datasets")):
        within = f"--dataset {source}: datasets[{place}]."
        one = _Fields(within, given, _OF_A_PART)
        if "params" in given and "config" in given:
            raise SettingsError(f"{within}params and {within}config are the same; give one of them")
        part = _part(one, one.text("name"), "config" if "config" in given else "params", may_seed=True)
        if part.name in parts:
            raise SettingsError(f"{within}name is {part.name!r} again; name it once, with more weight")
        if part.seed is None and seed + place + 1 > MAX_SEED:
            raise SettingsError(
                f"--seed is {seed}, but the mix's datasets have the seeds after it, of which {MAX_SEED} is "
                "the last; choose a lower one"
            )
        parts[part.name] = part
    return tuple(parts.values())


def _part(fields: _Fields, name: str, key: str, *, may_seed: bool) -> Part:
    params = fields.object(key)
    own = _Fields(f"{fields.where}{key}.", params, tuple(params))
    if "seed" in params and not may_seed:
        raise SettingsError(f"{fields.where}{key} has a seed; give it as --seed, or beside 'params'")
    seed = own.integer("seed", None, 0, MAX_SEED) if "seed" in params else None
    if "size" in params:
        own.integer("size", None, 1, MAX_TASKS)
    rest = {key: value for key, value in params.items() if key != "seed"}
    return Part(name, fields.number("weight", 1.0, MIN_WEIGHT, MAX_WEIGHT), rest, seed)


class _Fields:
    """The fields of an object in the file; `where` it is stands before a key. SettingsError refuses one."""

    def __init__(self, where: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
        self.where: Final = where
        self._given: Final = given
        for key in given:
            if key not in known:
                close = get_close_matches(key, known, n=1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                raise SettingsError(f"{where}{key} is no key of it; {hint}use one of {', '.join(known)}")

    def integer(self, key: str, default: int | None, low: int, high: int) -> int:
        value = self._given.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(key, f"an integer from {low} to {high}")
        return value

    def number(self, key: str, default: float, low: float, high: float) -> float:
        value = self._given.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self._wrong(key, f"a number from {low} to {high}")
        return value

    def text(self, key: str) -> str:
        value = self._given.get(key)
        if not isinstance(value, str) or not value:
            raise self._wrong(key, "the name of a dataset")
        return value

    def object(self, key: str) -> dict[str, Any]:
        value = self._given.get(key, {})
        if not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return value

    def objects(self, key: str) -> list[dict[str, Any]]:
        value = self._given.get(key)
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            raise self._wrong(key, "a list of at least one object")
        return value

    def _wrong(self, key: str, wanted: str) -> SettingsError:
        if key not in self._given:
            return SettingsError(f"{self.where}{key} is missing; give {wanted}")
        return SettingsError(f"{self.where}{key} is {repr(self._given[key])[:80]}; give {wanted}")


def _loaded(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--dataset {path}: {error}; name a file in UTF-8 that can be read") from error
    suffix = PurePath(path).suffix
    try:
        if suffix == ".json":
            found = json.loads(text)
        elif suffix == ".toml":
            found = tomllib.loads(text)
        else:
            found = importlib.import_module("yaml").safe_load(text)
    except ImportError as error:
        raise SettingsError(
            f"--dataset {path}: {error}; install PyYAML, or write the file as .json or .toml"
        ) from error
    except Exception as error:  # yaml's errors have no base that could be named without importing it
        raise SettingsError(f"--dataset {path}: {error}; correct what is no {suffix[1:].upper()}") from error
    if not isinstance(found, dict):
        raise SettingsError(f"--dataset {path}: found a {type(found).__name__}; give an object")
    return _as_json(f"--dataset {path}", found)


def _as_json(where: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """As a worker gets it: no dates, no infinities, no keys that are numbers."""
    try:
        read: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{where}: {error}; use what JSON has") from error
    return read
