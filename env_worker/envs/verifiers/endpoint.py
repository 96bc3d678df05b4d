"""How verifiers' client is told what a run may ask, and how it is to sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from env_worker.domain import SamplingParams
    from env_worker.envs.verifiers.settings import VerifiersSettings
    from env_worker.model.engine import Engine

NO_KEY: Final = "ENVTRIO_NO_API_KEY"
"""A variable that nobody sets, for engines without a key: verifiers would look for its makers' own."""


def client_config(engine: Engine, settings: VerifiersSettings) -> dict[str, Any]:
    """The configuration of verifiers' client for `engine`."""
    return {
        **settings.client,
        "base_url": engine.url,
        "api_key_var": engine.key_variable or NO_KEY,
        "headers": dict(engine.headers),
    }


def sampling_config(sampling: SamplingParams, settings: VerifiersSettings) -> dict[str, Any]:
    """The sampling parameters in verifiers' terms, which are their usual names. The eval client takes no
    log-probabilities, and what a chat API understands by `logprobs` is no number."""
    given = sampling.as_dict()
    if settings.client_type == "eval":
        given.pop("logprobs", None)
    return given


def no_heads(
    sampling: SamplingParams, settings: VerifiersSettings, *, takes_heads: bool, version: str
) -> str:
    """Why a turn may have no head though `sampling` asks for one; "" where it does not."""
    if not sampling.logprobs:
        return ""
    if settings.client_type == "eval":
        return 'verifiers\' eval client takes text only; serve the environment with "client": "train"'
    if not takes_heads:
        return f"verifiers {version} takes no heads; install a later one"
    return "the engine gave no top log-probabilities"
