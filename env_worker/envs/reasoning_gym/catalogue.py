"""What the reasoning-gym package has: datasets by name, what they take, system prompts."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import fields
from difflib import get_close_matches
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import InvalidTaskError
from env_worker.envs.task_fields import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

LISTING: Final = "python -m env_worker.envs.reasoning_gym"
"""The command that lists datasets, and behind a dataset's name its params."""
COMPOSITE: Final = "composite"
"""The package's dataset of datasets."""

# The package always imports pycosat, which takes a C compiler to install; only these use it.
_NEEDS_PYCOSAT: Final = frozenset({"zebra_puzzles"})


class Catalogue:
    """The package, imported. Raises ImportError when it is missing.

    `prompts` are its system prompts by name.
    """

    def __init__(self) -> None:
        self._has_pycosat: Final = importlib.util.find_spec("pycosat") is not None
        if not self._has_pycosat:
            sys.modules["pycosat"] = ModuleType("pycosat", "Stands in for the missing package.")
        try:
            self._utils: Final[Any] = importlib.import_module("reasoning_gym").utils
        finally:
            if not self._has_pycosat:
                del sys.modules["pycosat"]
        self._registered: Final[Mapping[str, tuple[type, type]]] = importlib.import_module(
            "reasoning_gym.factory"
        ).DATASETS
        self._part: Final[Any] = importlib.import_module("reasoning_gym.composite").DatasetSpec
        self.prompts: Final[Mapping[str, str]] = self._utils.SYSTEM_PROMPTS

    def __contains__(self, name: object) -> bool:
        return name in self._registered

    @property
    def names(self) -> tuple[str, ...]:
        """What a task's dataset may be called, in order."""
        return tuple(sorted(name for name in self._registered if name != COMPOSITE))

    def defaults(self, name: str) -> Mapping[str, Any]:
        """What dataset `name` takes as params, each with the value that it has where it is left out."""
        config = self._registered[name][1]()
        return {field.name: getattr(config, field.name) for field in fields(config) if field.name != "seed"}

    def check(self, key: str, name: str) -> None:
        """Raises InvalidTaskError, naming the task's `key`, when dataset `name` cannot be had here."""
        if name == COMPOSITE:
            raise InvalidTaskError(
                f"task key {key!r} is {name!r}, which is a mix: say of what in task key 'datasets' instead"
            )
        if name not in self._registered:
            raise InvalidTaskError(f"task key {key!r} is {shown(name)}: {self.unknown(name)}")
        if name in _NEEDS_PYCOSAT and not self._has_pycosat:
            raise InvalidTaskError(
                f"task key {key!r} is {shown(name)}, which this worker cannot build: it needs the package "
                "pycosat, and that a C compiler; install both on the worker, or ask for another dataset"
            )

    def unknown(self, name: str) -> str:
        """That there is no dataset `name`, and which may be meant."""
        close = get_close_matches(name, self.names, n=3)
        hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
        return (
            f"dataset {shown(name)} is none of the {len(self.names)} of reasoning-gym: {hint}"
            f"`{LISTING}` lists them"
        )

    def config(self, name: str, seed: int, params: Mapping[str, Any], key: str) -> Any:
        """What the package makes of `params` for dataset `name`, checked by it.

        Of COMPOSITE they are `size` and `datasets`, each of these with `name`, `weight` and `config`. Raises
        InvalidTaskError, naming the task's `key`, when the package refuses them.
        """
        try:
            given = dict(params)
            if name == COMPOSITE:
                given["datasets"] = [self._part(**part) for part in given["datasets"]]
            config = self._registered[name][1](seed=seed, **given)
            if hasattr(config, "validate"):
                config.validate()
        except Exception as error:  # the package checks with asserts, and fails as it may on other types
            raise refused(name, params, key, error) from error
        return config

    def build(self, name: str, config: Any) -> Any:
        """The dataset. May take seconds, and raises whatever it likes."""
        return self._registered[name][0](config=config)

    def answer_in(self, text: str) -> str:
        """The answer in a model's `text`: between its last answer tags, or all of it where it has none."""
        found: str | None = self._utils.extract_answer(text)
        return text.strip() if found is None else found


def refused(name: str, params: object, key: str, error: Exception) -> InvalidTaskError:
    """What to tell of the package's `error` about the task's `key`."""
    listed = "" if name == COMPOSITE else f", which `{LISTING} {name}` lists"
    return InvalidTaskError(
        f"dataset {name!r} refused task key {key!r} {shown(params)} "
        f"({type(error).__name__}: {shown(str(error))}): correct them, or leave them out for its "
        f"defaults{listed}"
    )
