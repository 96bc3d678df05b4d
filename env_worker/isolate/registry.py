"""The environments that a worker serves, in its own process or each run in one of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from env_worker.envs.registry import EnvironmentRegistry
from env_worker.isolate.children import Children
from env_worker.isolate.environment import IsolatedEnvironment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from env_worker.envs.base import Environment


class IsolatedRegistry(EnvironmentRegistry):
    """Loads each spec here too, so that one that cannot be loaded is refused at start-up, and serves it
    isolated."""

    def __init__(self, specs: Iterable[str]) -> None:
        self._children = Children()
        super().__init__(specs)

    def _served(self, spec: str, environment: Environment) -> Environment:
        return IsolatedEnvironment(spec, environment, self._children)

    async def close(self, seconds: float) -> None:
        await self._children.close(seconds)


def load_environments(specs: Iterable[str], isolate: str) -> EnvironmentRegistry:
    """The registry for the setting `isolate`, "none" or "process". EnvironmentLoadError as its class."""
    return IsolatedRegistry(specs) if isolate == "process" else EnvironmentRegistry(specs)
