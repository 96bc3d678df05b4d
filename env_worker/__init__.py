"""Runs episodes, streams their growth, and hands each with its training arrays to a hook in its own
process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# What a hook or an environment module needs is imported on first use: a module that is loaded by a worker
# must not load the whole server again, nor a script that only reads a name.
_HOMES = {
    "ArrayKeeper": "env_worker.arrays.keeper",
    "array_keeper": "env_worker.arrays.keeper",
    "TRAINING_ARRAY_FIELDS": "env_worker.domain",
    "Episode": "env_worker.domain",
    "InvalidTaskError": "env_worker.domain",
    "Message": "env_worker.domain",
    "Node": "env_worker.domain",
    "SamplingMask": "env_worker.domain",
    "SamplingParams": "env_worker.domain",
    "ToolError": "env_worker.domain",
    "TopLogprobs": "env_worker.domain",
    "Trace": "env_worker.domain",
    "LATE_CANCEL_SECONDS": "env_worker.domain.ledger",
    "Context": "env_worker.envs.base",
    "Environment": "env_worker.envs.base",
    "EngineError": "env_worker.model.errors",
    "EpisodeHook": "env_worker.hook",
    "set_episode_hook": "env_worker.hook",
    "serve": "env_worker.serving",
}

if TYPE_CHECKING:
    from env_worker.arrays.keeper import ArrayKeeper, array_keeper
    from env_worker.domain import (
        TRAINING_ARRAY_FIELDS,
        Episode,
        InvalidTaskError,
        Message,
        Node,
        SamplingMask,
        SamplingParams,
        ToolError,
        TopLogprobs,
        Trace,
    )
    from env_worker.domain.ledger import LATE_CANCEL_SECONDS
    from env_worker.envs.base import Context, Environment
    from env_worker.hook import EpisodeHook, set_episode_hook
    from env_worker.model.errors import EngineError
    from env_worker.serving import serve

__all__ = [
    "LATE_CANCEL_SECONDS",
    "TRAINING_ARRAY_FIELDS",
    "ArrayKeeper",
    "Context",
    "EngineError",
    "Environment",
    "Episode",
    "EpisodeHook",
    "InvalidTaskError",
    "Message",
    "Node",
    "SamplingMask",
    "SamplingParams",
    "ToolError",
    "TopLogprobs",
    "Trace",
    "array_keeper",
    "serve",
    "set_episode_hook",
]


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return __all__
