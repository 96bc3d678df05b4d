"""Tasks of reasoning-gym, of one dataset or of a mix."""

from __future__ import annotations

import importlib
import json
import random
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from env_client.config import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Part:
    """One dataset of a set. `seed` is the one that `params` came with, which have none themselves."""

    name: str
    weight: float
    params: Mapping[str, Any]
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class TaskSet:
    """`count` tasks of the first of `parts`, or of all of them if it is a mix. Iterating makes them.

    A task of a mix names the one dataset that its entry is of, with the seed that the mix gives to that. So
    any worker can answer it, and the entries are, one by one, those of the package's composite of the same
    parts, seed and size.

    Attributes:
        passed_on: what else stands in each task.
    """

    parts: tuple[Part, ...]
    is_mix: bool
    seed: int
    size: int
    count: int
    passed_on: Mapping[str, Any]

    def __len__(self) -> int:
        return self.count

    def __str__(self) -> str:
        names = [part.name for part in self.parts]
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        places = range(len(self.parts))
        weights = [part.weight for part in self.parts]
        for index in range(self.count):
            # As the package's composite draws.
            (place,) = random.Random(self.seed + index).choices(places, weights=weights, k=1)
            yield {
                "dataset": self.parts[place].name,
                "seed": self._seed(place),
                "index": index,
                "params": self._params(place),
                **self.passed_on,
            }

    def check(self) -> str | None:
        """Let the package check names and params. Where it is not installed: that, and why.

        Raises:
            SettingsError: it refuses them.
        """
        try:
            registered = importlib.import_module("reasoning_gym.factory").DATASETS
        except ImportError as error:
            return f"reasoning-gym is not installed here ({error})"
        for place, part in enumerate(self.parts):
            if part.name not in registered:
                close = get_close_matches(part.name, registered, n=1)
                listing = "list them with python -m env_worker.envs.reasoning_gym"
                hint = f"did you mean {close[0]!r}?" if close else listing
                raise SettingsError(f"--dataset: reasoning-gym has no dataset {part.name!r}; {hint}")
            try:
                config = registered[part.name][1](seed=self._seed(place), **self._params(place))
                if hasattr(config, "validate"):
                    config.validate()
            except Exception as error:  # it checks with asserts, and fails as it may on other types
                raise SettingsError(
                    f"--dataset: {part.name!r} refuses the params {json.dumps(part.params)[:80]} "
                    f"({type(error).__name__}: {error}); correct them, or leave them out for its defaults"
                ) from error
        return None

    def _seed(self, place: int) -> int:
        own = self.parts[place].seed
        if own is not None:
            return own
        return self.seed + place + 1 if self.is_mix else self.seed

    def _params(self, place: int) -> dict[str, Any]:
        # Always with a size: what a dataset has without one, only the package knows.
        return {"size": self.size, **self.parts[place].params}
