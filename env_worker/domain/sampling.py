"""How the caller wants tokens to be sampled."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

from env_worker.domain.records import check_finite
from env_worker.domain.text import JsonObject, JsonValue, check_text, encode_json

if TYPE_CHECKING:
    from collections.abc import Mapping

_INTEGERS: Final = ("top_k", "max_tokens", "seed", "logprobs")
_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0.0, float("inf")),
    "top_p": (0.0, 1.0),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "max_tokens": (1, 2**31 - 1),
    "seed": (-(2**63), 2**63 - 1),
    "logprobs": (0, 2**31 - 1),
    "presence_penalty": (float("-inf"), float("inf")),
    "frequency_penalty": (float("-inf"), float("inf")),
    "repetition_penalty": (0.0, float("inf")),
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters under their usual names; None leaves a choice to the engine.

    `logprobs` is the number of top log-probabilities wanted for each sampled token; `top_k` 0 or -1 switches
    that filter off; `extra` holds further keys for the engine, JSON values each. TypeError or ValueError
    naming the parameter, its value and its range; a key of `extra` must not be one of the typed names.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    seed: int | None = None
    logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is None:
                continue
            check_finite(value, f"sampling parameter {name}")
            if isinstance(value, bool) or (name in _INTEGERS and not isinstance(value, int)):
                kind = "an integer" if name in _INTEGERS else "a number"
                raise TypeError(f"sampling parameter {name} is {value!r}, expected {kind}")
            if not low <= value <= high:
                raise ValueError(f"sampling parameter {name} is {value}, expected {low} to {high}")
        if self.stop is not None:
            object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
            for text in self.stop:
                check_text(text, "sampling parameter stop")
        for key, value in self.extra.items():
            if key in _RANGES or key in ("stop", "extra"):
                raise ValueError(
                    f"extra sampling key {key!r} has a typed parameter: set "
                    f"{'top_logprobs_count' if key == 'logprobs' else key} of SamplingParams"
                )
            encode_json(value, f"extra sampling key {key!r}")
        object.__setattr__(self, "extra", dict(self.extra))

    def as_dict(self) -> JsonObject:
        """The parameters that are set, by name, and the keys of `extra` beside them; `stop` as a list."""
        given = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "extra"}
        if self.stop is not None:
            given["stop"] = list(self.stop)
        return {name: value for name, value in given.items() if value is not None} | dict(self.extra)
