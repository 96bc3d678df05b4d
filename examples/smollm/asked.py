"""What requests ask for, checked: whatever this engine cannot do is refused, not left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from examples.smollm.generation import Wanted
from examples.smollm.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from examples.smollm.model import Model

MOST_HEADS: Final = 20
"""Candidates of a token that may be asked for, as vLLM's `--max-logprobs` has it."""
MOST_TOP_K: Final = 1000
"""Each survivor of a token is told, so there may not be many."""

_ROLES: Final = ("system", "user", "assistant")
# What vLLM can do, and this engine cannot: each with the values that ask for nothing.
_CANNOT: Final[Mapping[str, tuple[Any, ...]]] = {
    "stream": (False,),
    "n": (1,),
    "best_of": (1,),
    "tools": ([],),
    "min_p": (0,),
    "min_tokens": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "logprob_token_ids": ([],),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "ignore_eos": (False,),
    "prompt_logprobs": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "features": (),
    "content_parts": (),
    "priority": (0,),
}


class RefusedError(Exception):
    """The request is answered with an error; `kind` is its type in vLLM's words."""

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


def field(body: Mapping[str, Any], name: str, *kinds: type, default: Any = None) -> Any:
    """A field of a request; null is as good as absent. RefusedError where it is of no kind of `kinds`."""
    if (value := body.get(name)) is None:
        return default
    if type(value) not in kinds:
        names = " or ".join(kind.__name__ for kind in kinds)
        raise RefusedError(f"{name} is {_shown(value)}, expected {names}")
    return value


def number(body: Mapping[str, Any], name: str, default: float, low: float, high: float) -> Any:
    """A number from `low` to `high`; an integer where `default` is one. RefusedError where it is none."""
    kinds = (int,) if isinstance(default, int) else (int, float)
    value = field(body, name, *kinds, default=default)
    if not low <= value <= high:
        raise RefusedError(f"{name} is {_shown(value)}, expected {low} to {high}")
    return value


def check_possible(body: Mapping[str, Any], served: str) -> None:
    """RefusedError where the request wants another model, or what this engine cannot do."""
    model = field(body, "model", str, default=served)
    if model != served:
        raise RefusedError(f"there is no model {_shown(model)}, only {served!r}", 404, "NotFoundError")
    for name, nothing in _CANNOT.items():
        if (value := body.get(name)) is not None and value not in nothing:
            raise RefusedError(f"{name} is {_shown(value)}, which this engine cannot do: leave it out")


def prompt_of(body: Mapping[str, Any], model: Model) -> list[int]:
    """The prompt that a chat request's messages are rendered to."""
    messages = field(body, "messages", list)
    if not messages:
        raise RefusedError("messages is empty or missing, expected at least one")
    try:
        return model.render([_message(message) for message in messages])
    except UnicodeEncodeError:
        raise RefusedError("messages hold half of a surrogate pair, which is no text") from None


def ids_of(value: Any, name: str, model: Model) -> list[int]:
    """Token ids of the model. RefusedError where there are none, or others."""
    size = len(model.vocabulary)
    if not isinstance(value, list) or not value:
        raise RefusedError(f"{name} is {_shown(value)}, expected a list of token ids")
    for index in value:
        if type(index) is not int or not 0 <= index < size:
            raise RefusedError(f"{name} has {_shown(index)}, expected token ids from 0 to {size - 1}")
    return value


def chat_heads(body: Mapping[str, Any]) -> int | None:
    """How many candidates a chat request wants of each token; None: no log-probabilities."""
    heads: int = number(body, "top_logprobs", 0, 0, MOST_HEADS)
    if field(body, "logprobs", bool, default=False):
        return heads
    if heads:
        raise RefusedError(f"top_logprobs is {heads}, but logprobs is not true; set it")
    return None


def generate_heads(sampling: Mapping[str, Any]) -> int | None:
    """The same of generate's `sampling_params`."""
    if sampling.get("logprobs") is None:
        return None
    heads: int = number(sampling, "logprobs", 0, 0, MOST_HEADS)
    return heads


def wanted_of(body: Mapping[str, Any], prompt: Sequence[int], heads: int | None, model: Model) -> Wanted:
    """What to generate behind `prompt`, of a chat request or of generate's `sampling_params`."""
    room = model.context - len(prompt)
    if room < 1:
        raise RefusedError(
            f"the prompt has {len(prompt)} tokens, but this model's maximum context length is "
            f"{model.context}: shorten the messages, or start the engine with a larger --context"
        )
    name = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    sampling = Sampling(
        temperature=number(body, "temperature", 1.0, 0, 100),
        # vLLM has -1 for no limit, newer versions 0.
        top_k=max(number(body, "top_k", 0, -1, MOST_TOP_K), 0),
        top_p=number(body, "top_p", 1.0, 0, 1),
        seed=field(body, "seed", int),
        heads=heads,
    )
    stop_ids = body.get("stop_token_ids") or None
    return Wanted(
        prompt=tuple(prompt),
        most=min(number(body, name, room, 1, 2**31 - 1), room),
        sampling=sampling,
        stops=tuple(_stops(body)),
        stop_ids=frozenset(ids_of(stop_ids, "stop_token_ids", model) if stop_ids else ()),
    )


def _stops(body: Mapping[str, Any]) -> Iterable[str]:
    stop = field(body, "stop", str, list, default=[])
    for text in [stop] if isinstance(stop, str) else stop:
        if not isinstance(text, str) or not text or not _is_text(text):
            raise RefusedError(f"stop has {_shown(text)}, expected texts that are not empty")
        yield text


def _message(message: Any) -> dict[str, str]:
    """A chat message as the template takes it: role and text."""
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise RefusedError(
            f"messages has {_shown(message)}, expected messages with a role of {', '.join(_ROLES)}: the "
            "model knows no tools"
        )
    if message.get("tool_calls"):
        raise RefusedError("a message has tool_calls, but the model knows no tools")
    content = message.get("content") or ""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise RefusedError(f"a message has the content {_shown(part)}, but the model reads text alone")
    return {"role": message["role"], "content": "".join(part["text"] for part in parts)}


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
