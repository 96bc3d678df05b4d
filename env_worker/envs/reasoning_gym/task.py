"""A reasoning-gym task, and how one is read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import InvalidTaskError
from env_worker.envs.reasoning_gym.catalogue import COMPOSITE
from env_worker.envs.task_fields import TaskFields, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.envs.reasoning_gym.catalogue import Catalogue

MAX_INDEX: Final = 1_000_000
MAX_SEED: Final = 2**32 - 1
MAX_TRIES: Final = 32
MIN_WEIGHT: Final = 1e-6
MAX_WEIGHT: Final = 1e6
DEFAULT_SIZE: Final = 500
"""Of a mix, as in the package."""

_ALWAYS: Final = ("seed", "index", "max_tries", "system_prompt")
_OF_ONE: Final = ("dataset", "datasets", "params", *_ALWAYS)
_OF_A_MIX: Final = ("datasets", "size", *_ALWAYS)
_OF_A_PART: Final = ("name", "weight", "params", "config")
_OTHER: Final = {"dataset": "datasets", "datasets": "dataset"}


@dataclass(frozen=True, slots=True)
class ReasoningGymTask:
    """A reasoning-gym task, checked.

    `params` are the dataset's own, as canonical JSON text; of COMPOSITE what `Catalogue.config` takes of it.
    """

    dataset: str
    seed: int
    index: int
    params: str
    max_tries: int
    system_prompt: str


def read_task(task: Mapping[str, Any], fixed: Mapping[str, Any], catalogue: Catalogue) -> ReasoningGymTask:
    """The task that `task` and `fixed` are together.

    `fixed` are keys that the environment was started with: a task leaves them out, or gives the same. Raises
    InvalidTaskError, naming key, value and limit.
    """
    for key, value in fixed.items():
        for given in (key, _OTHER.get(key, key)):
            if given in task and (given != key or task[given] != value):
                raise InvalidTaskError(
                    f"task key {given!r} is {shown(task[given])}, but this environment was started with "
                    f"{key!r} {shown(value)} for all tasks: leave the key out, or ask another environment"
                )
    whole = {**task, **fixed}
    is_mix = "datasets" in whole
    if is_mix and "dataset" in whole:
        raise InvalidTaskError(
            f"task keys 'dataset' ({shown(whole['dataset'])}) and 'datasets' are both given, but a task is "
            "of one dataset or of a mix: remove one of them"
        )
    fields = TaskFields(whole, _OF_A_MIX if is_mix else _OF_ONE)
    seed = fields.integer("seed", 0, 0, MAX_SEED)
    index = fields.integer("index", 0, 0, MAX_INDEX - 1)
    dataset, params, size = (_mix if is_mix else _one)(fields, seed, catalogue)
    if index >= size:
        raise InvalidTaskError(
            f"task key 'index' is {index}, but the dataset has {size} entries: lower it, or raise "
            + ("task key 'size'" if is_mix else "'size' in task key 'params'")
        )
    return ReasoningGymTask(
        dataset=dataset,
        seed=seed,
        index=index,
        params=json.dumps(params, sort_keys=True),
        max_tries=fields.integer("max_tries", 3, 1, MAX_TRIES),
        system_prompt=_prompt(fields, catalogue),
    )


def _one(fields: TaskFields, seed: int, catalogue: Catalogue) -> tuple[str, dict[str, Any], int]:
    name = fields.text("dataset", None)
    catalogue.check("dataset", name)
    params = fields.mapping("params")
    if "seed" in params:
        raise InvalidTaskError(
            f"'seed' in task key 'params' is {shown(params['seed'])}: give it as task key 'seed' instead"
        )
    return name, params, _size(catalogue.config(name, seed, params, "params"), "params")


def _mix(fields: TaskFields, seed: int, catalogue: Catalogue) -> tuple[str, dict[str, Any], int]:
    size = fields.integer("size", DEFAULT_SIZE, 1, MAX_INDEX)
    parts: dict[str, dict[str, Any]] = {}
    for position, given in enumerate(fields.mappings("datasets")):
        within = f"datasets[{position}]."
        part = TaskFields(given, _OF_A_PART, within)
        name = part.text("name", None)
        catalogue.check(f"{within}name", name)
        if name in parts:
            raise InvalidTaskError(
                f"task key '{within}name' is {name!r}, which is one of the mix already: name each once, and "
                "give it more weight"
            )
        if "params" in given and "config" in given:
            raise InvalidTaskError(
                f"task keys '{within}params' and '{within}config' are the same: give one of them"
            )
        key = "config" if "config" in given else "params"
        params = part.mapping(key)
        # As the package has it, each has the mix's size, and a seed of its own by its place.
        own_seed = seed + position + 1
        if "seed" in params:
            own_seed = TaskFields(params, tuple(params), f"{within}{key}.").integer("seed", 0, 0, MAX_SEED)
        rest = {name: value for name, value in params.items() if name != "seed"}
        config = catalogue.config(name, own_seed, {"size": size, **rest}, f"{within}{key}")
        if (own_size := _size(config, f"{within}{key}")) < size:
            raise InvalidTaskError(
                f"'size' in task key '{within}{key}' is {own_size}, but any of the mix's {size} entries may "
                "be of it: leave it out, or lower task key 'size'"
            )
        weight = part.number("weight", 1.0, MIN_WEIGHT, MAX_WEIGHT)
        parts[name] = {"name": name, "weight": weight, "config": params}
    params = {"size": size, "datasets": list(parts.values())}
    catalogue.config(COMPOSITE, seed, params, "datasets")
    return COMPOSITE, params, size


def _size(config: Any, key: str) -> int:
    size = getattr(config, "size", MAX_INDEX)
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_INDEX:
        raise InvalidTaskError(
            f"'size' in task key {key!r} is {shown(size)}, but must be an integer between 1 and {MAX_INDEX}: "
            "set it to one, or leave it out"
        )
    return size


def _prompt(fields: TaskFields, catalogue: Catalogue) -> str:
    name = fields.text("system_prompt", "default")
    if name not in catalogue.prompts:
        close = get_close_matches(name, catalogue.prompts, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise InvalidTaskError(
            f"task key 'system_prompt' is {shown(name)}, no system prompt of reasoning-gym{hint}: use one of "
            + ", ".join(catalogue.prompts)
        )
    return catalogue.prompts[name]
