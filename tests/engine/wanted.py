"""What a request asks for, checked as the engines check it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.engine.tokens import VOCABULARY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.engine.profiles import Profile, Served
    from tests.engine.tokens import Ids


class RefusedError(Exception):
    """The request is answered with an error; `kind` is its type in vLLM's words."""

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Wanted:
    """Of one answer. `heads` is the number of candidates, None without log-probabilities."""

    heads: int | None
    max_tokens: int | None
    stop: tuple[str, ...]
    as_ids: bool = False
    rows_from: int = 0


def error_body(profile: Profile, error: RefusedError) -> dict[str, Any]:
    """How the engine writes an error."""
    kind = "invalid_request_error" if profile.family == "openai" else error.kind
    told = {"message": str(error), "type": kind, "param": None, "code": error.status}
    return {"object": "error", **told} if profile.family == "sglang" else {"error": told}


def field(body: Mapping[str, Any], name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    """A field of a request; null is as good as absent. RefusedError where it is of another kind."""
    if (value := body.get(name)) is None:
        return default
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join(item.__name__ for item in kinds)
        raise RefusedError(f"1 validation error: body.{name}: Input should be a valid {names}, not {value!r}")
    return value


def check_common(body: Mapping[str, Any], served: Served) -> None:
    """Model, priority, cache salt, and what this engine does not do."""
    model = field(body, "model", str)
    if model is not None and model != served.model:
        raise RefusedError(f"The model `{model}` does not exist.", 404, "NotFoundError")
    if field(body, "priority", int, 0) and not served.priority:
        raise RefusedError("Got priority but Priority scheduling is not enabled.")
    salt = field(body, "cache_salt", str)
    if salt is not None and not 1 <= len(salt) <= 1024:
        raise RefusedError("Parameter 'cache_salt' must be a non-empty string of at most 1024 characters.")
    if field(body, "stream", bool, False):
        raise RefusedError("The scripted engine answers whole; leave stream out.")
    if field(body, "n", int, 1) != 1:
        raise RefusedError("The scripted engine gives one choice; leave n out.")


def sampling_of(body: Mapping[str, Any], served: Served, heads: int | None) -> Wanted:
    """Limits of the answer, of a chat or completions body or of generate's sampling_params."""
    most = VOCABULARY if served.max_logprobs < 0 else served.max_logprobs
    if heads == -1 and served.max_logprobs < 0:
        heads = VOCABULARY
    if heads is not None and not 0 <= heads <= most:
        raise RefusedError(f"Requested sample logprobs of {heads}, which is greater than max allowed: {most}")
    tokens = field(body, "max_completion_tokens", int) or field(body, "max_tokens", int)
    if tokens is not None and tokens < 1:
        raise RefusedError(f"max_tokens must be at least 1, got {tokens}.")
    stop = field(body, "stop", (str, list), [])
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(text, str) and text for text in stops):
        raise RefusedError("stop cannot contain an empty string.")
    temperature = field(body, "temperature", (int, float), 1.0)
    if temperature < 0:
        raise RefusedError(f"temperature must be non-negative, got {temperature}.")
    return Wanted(heads, tokens, stops)


def check_mask(body: Mapping[str, Any], served: Served) -> None:
    """vLLM with sampling masks refuses what has no bounded support, on every endpoint."""
    if not served.sampling_mask:
        return
    if field(body, "temperature", (int, float), 1.0) <= 0 or field(body, "top_k", int, 0) <= 0:
        raise RefusedError("return_sampling_mask requires temperature > 0 and top_k > 0 on every request.")


def rows_from(body: Mapping[str, Any], prompt_ids: Ids) -> int:
    """The start of the rows that are asked for."""
    start: int = field(body, "routed_experts_prompt_start", int, 0)
    if not 0 <= start <= len(prompt_ids):
        raise RefusedError(
            f"routed_experts_prompt_start must be 0 to the prompt's length, {len(prompt_ids)}, not {start}."
        )
    return start


def check_length(prompt_ids: Ids, served: Served) -> None:
    """Whether the prompt fits into the model."""
    if len(prompt_ids) >= served.max_model_len:
        raise RefusedError(
            f"This model's maximum context length is {served.max_model_len} tokens. However, your request "
            f"has {len(prompt_ids)} input tokens. Please reduce the length of the input messages."
        )
