"""How verifiers' client is told what a run may ask, and how it is to sample."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from env_worker.domain import SamplingParams
    from env_worker.envs.verifiers.settings import VerifiersSettings
    from env_worker.model.engine import Engine

NO_KEY: Final = "ENVTRIO_NO_API_KEY"
"""A variable that nobody sets, for engines without a key: verifiers would look for its makers' own."""
_CLEAN: Final = "ENVTRIO_API_KEY_"
"""Of this process alone: verifiers hands no variable on that has API_KEY in its name."""


def key_variable(engine: Engine) -> str:
    """The variable that verifiers is to read the key from, which it sends as it is: the engine's own, or, if
    that has white space around the key, as files have it at their end, one with the key alone.

    LookupError if there is no key: verifiers would go on without.
    """
    if not (key := engine.api_key):
        return NO_KEY
    if os.environ[engine.key_variable] == key:
        return engine.key_variable
    clean = f"{_CLEAN}{engine.key_variable}"
    os.environ[clean] = key
    return clean


def key_variables(engine: Engine) -> tuple[str, ...]:
    """All variables of this process that hold the engine's key."""
    name = engine.key_variable
    return (name, f"{_CLEAN}{name}") if name else ()


def client_config(engine: Engine, settings: VerifiersSettings) -> dict[str, Any]:
    """The configuration of verifiers' client for `engine`. LookupError if its key is not there."""
    return {
        **settings.client,
        "base_url": engine.url,
        "api_key_var": key_variable(engine),
        "headers": dict(engine.headers),
    }


def sampling_config(sampling: SamplingParams, settings: VerifiersSettings) -> dict[str, Any]:
    """The sampling parameters in verifiers' terms, which are their usual names. The eval client takes no
    log-probabilities, and what a chat API understands by `logprobs` is no number."""
    given = sampling.as_dict()
    if settings.client_type == "eval":
        given.pop("logprobs", None)
    return given
