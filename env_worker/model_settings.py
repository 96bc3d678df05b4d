"""The worker's settings for models: engines to ask, and the simulation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from env_worker.domain import TRAINING_ARRAY_FIELDS
from env_worker.setting import SettingsError, check_range, setting

LOGPROBS_MODES: Final = ("", "raw", "processed")
_SHAPE: Final = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def is_variable(name: str) -> bool:
    """Whether that can be the name of an environment variable that holds a key."""
    return _VARIABLE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Which models a worker's runs may ask, and how."""

    model_url: str | None = setting(
        "--model-url",
        None,
        "URL",
        "base URL of the engine that is asked where a run names none, e.g. http://engine:8000/v1; default: "
        "none, only the simulation",
    )
    model: str | None = setting("--model", None, "name", "model that is asked where a run names none")
    model_dialect: str = setting(
        "--model-dialect",
        "openai-chat",
        "name",
        "the API that engines speak where a run does not say: openai-chat, vllm-chat, vllm-completions, "
        "vllm-generate or sglang-chat",
    )
    model_key_variable: str | None = setting(
        "--model-key-variable",
        None,
        "name",
        "environment variable that holds the API key for --model-url, and for no other",
    )
    allow_endpoint: tuple[str, ...] = setting(
        "--allow-endpoint",
        (),
        "URL",
        "base URL that runs may name; the host may begin with `*.`, the port be `*`; may be repeated, or "
        "separated by commas; default: none beside --model-url",
    )
    allow_key_variable: tuple[str, ...] = setting(
        "--allow-key-variable",
        (),
        "name",
        "environment variable whose API key runs may use, by its name, at any endpoint that is allowed; may "
        "be repeated, or separated by commas; default: none beside --model-key-variable",
    )
    model_timeout_seconds: float = setting(
        "--model-timeout-seconds", 600.0, "s", "how long one try of a request to an engine may take"
    )
    model_retries: int = setting(
        "--model-retries",
        10,
        "tries",
        "further tries after a connection that failed, status 429 or 5xx; of an answer nothing was used "
        "then. 10 are some 30 s, as a push of weights may take",
    )
    model_arrays: tuple[str, ...] = setting(
        "--model-arrays",
        (),
        "name",
        f"training arrays that engines are asked for: {', '.join(TRAINING_ARRAY_FIELDS)}; a turn without one "
        "is marked incomplete; may be repeated, or separated by commas; default: what comes is taken",
    )
    model_routing_shape: str | None = setting(
        "--model-routing-shape",
        None,
        "LAYERSxTOP_K",
        "shape of a token's routed experts, for engines that send them without one (SGLang), e.g. 48x8",
    )
    model_experts: int | None = setting(
        "--model-experts",
        None,
        "experts",
        "how many experts a layer has: routing that names others is refused; default: not checked",
        type=int,
    )
    model_logprobs_mode: str = setting(
        "--model-logprobs-mode",
        "",
        "raw|processed",
        "what the engine's log-probabilities are of, as it was started; no response says it; it is passed on",
    )
    seed: int = setting("--seed", 0, "number", "seed of the simulated model")
    accuracy: float = setting("--accuracy", 0.6, "0 to 1", "rate at which the simulated model is right")

    @property
    def routing_shape(self) -> tuple[int, int] | None:
        """`model_routing_shape` as numbers."""
        found = _SHAPE.fullmatch(self.model_routing_shape or "")
        return None if found is None else (int(found[1]), int(found[2]))

    def check_model_settings(self) -> None:
        """SettingsError if one of them makes no sense. Endpoints and dialects are checked by `Engines`."""
        check_range("--accuracy", self.accuracy, 0, 1)
        check_range("--seed", self.seed, -(2**63), 2**63 - 1)
        check_range("--model-timeout-seconds", self.model_timeout_seconds, 0.1, 86_400)
        check_range("--model-retries", self.model_retries, 0, 100)
        for flag, names in (
            ("--model-key-variable", (self.model_key_variable,)),
            ("--allow-key-variable", self.allow_key_variable),
        ):
            for name in names:
                if name is not None and not is_variable(name):
                    # It may be a key that somebody has put in the place of a name.
                    raise SettingsError(
                        f"{flag} begins with {name[:3]!r} and is no name of an environment variable; give "
                        "the variable's name, and the key in that variable"
                    )
        for name in self.model_arrays:
            if name not in TRAINING_ARRAY_FIELDS:
                raise SettingsError(
                    f"--model-arrays has {name!r}; choose of {', '.join(TRAINING_ARRAY_FIELDS)}"
                )
        if self.model_routing_shape is not None and self.routing_shape is None:
            raise SettingsError(
                f"--model-routing-shape is {self.model_routing_shape!r}, expected LAYERSxTOP_K, e.g. 48x8"
            )
        if self.model_experts is not None:
            check_range("--model-experts", self.model_experts, 1, 65_536)
        if self.model_logprobs_mode not in LOGPROBS_MODES:
            raise SettingsError(
                f"--model-logprobs-mode is {self.model_logprobs_mode!r}; choose raw or processed"
            )
        if self.model_key_variable is not None and self.model_url is None:
            raise SettingsError(
                f"--model-key-variable is {self.model_key_variable!r}, but there is no --model-url; give both"
            )
        if self.model is not None and self.model_url is None and not self.allow_endpoint:
            raise SettingsError(
                f"--model is {self.model!r}, but no --model-url or --allow-endpoint says where; give one"
            )
        if self.model_url is not None and not self.model:
            raise SettingsError(
                f"--model-url is {self.model_url!r}, but --model does not say which model to ask there; give "
                "both"
            )
