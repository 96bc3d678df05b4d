"""What a run asks of its engine, as far as its traces have to tell what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from env_worker.model.dialects.base import EngineOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.domain import SamplingParams
    from env_worker.envs.verifiers.settings import VerifiersSettings
    from env_worker.model.engine import Engine

_TEXT_ONLY: Final = 'verifiers\' eval client takes text only; serve the environment with "client": "train"'
_NOT_SAMPLED: Final = "the sampling parameters ask for none; set logprobs to how many"
_NOT_GIVEN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "routed_experts": "the engine gave no routing rows; start vLLM with --enable-return-routed-experts",
        "sampling_mask": "the engine gave no sampling mask; start vLLM with --return-sampling-mask, and set "
        "temperature and top_k",
        "top_logprobs": "the engine gave no top log-probabilities",
    }
)


@dataclass(frozen=True, slots=True)
class Asked:
    """`missing` says of each training array that `engine` was asked for why a sampled node may be without it.
    `options` are the operator's: what came is checked by them.
    """

    engine: Engine
    missing: Mapping[str, str] = field(default_factory=dict)
    options: EngineOptions = field(default_factory=EngineOptions)


def heads_asked(agent: Any) -> int | None:
    """How many candidates of each token the calls of a trace's agent ask for: those of the run, unless its
    role has a number of its own. None where verifiers does not say."""
    asked = getattr(getattr(agent.config, "sampling", None), "logprobs", None)
    return asked if type(asked) is int and asked > 0 else None  # what the train client goes by


def missing_arrays(
    sampling: SamplingParams,
    settings: VerifiersSettings,
    options: EngineOptions,
    *,
    takes_heads: bool,
    version: str,
) -> dict[str, str]:
    """`Asked.missing`. Heads are asked for also where `sampling` wants some."""
    wanted = options.arrays | ({"top_logprobs"} if sampling.logprobs else set[str]())
    if settings.client_type == "eval":
        return dict.fromkeys(sorted(wanted), _TEXT_ONLY)
    missing = {name: _NOT_GIVEN[name] for name in sorted(wanted)}
    if "top_logprobs" in missing:
        if not takes_heads:
            missing["top_logprobs"] = f"verifiers {version} takes no heads; install a later one"
        elif not sampling.logprobs:
            missing["top_logprobs"] = _NOT_SAMPLED
    return missing
