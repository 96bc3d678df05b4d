"""Sampling parameters and messages, as requests have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from env_worker.model.errors import InexpressibleError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.domain import JsonObject, SamplingParams
    from env_worker.model.dialects.base import Question

OPENAI_NAMES: Final[Mapping[str, str]] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_tokens": "max_completion_tokens",
    "stop": "stop",
    "seed": "seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
"""Our name of a parameter, and OpenAI's in chat requests."""
ENGINE_NAMES: Final[Mapping[str, str]] = {
    **OPENAI_NAMES,
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
}
"""The same of vLLM and SGLang."""

_OFF: Final[Mapping[str, tuple[float, ...]]] = {
    "top_k": (0, -1),
    "min_p": (0,),
    "repetition_penalty": (1,),
}
"""Values that ask for nothing."""
_ONE_TURN: Final = frozenset({"model", "messages", "stream", "n", "top_logprobs"})
"""What makes a request this one: one answer, whole, of this conversation. And the width of its heads, for
which there is `logprobs`."""


def sampling_keys(sampling: SamplingParams, names: Mapping[str, str]) -> JsonObject:
    """The parameters that are set, without `logprobs` and `extra`, under the API's names.

    InexpressibleError for one that the API does not know, unless its value asks for nothing.
    """
    keys: JsonObject = {}
    for name in ENGINE_NAMES:
        value = getattr(sampling, name)
        if value is None:
            continue
        if name in names:
            keys[names[name]] = list(value) if name == "stop" else value
        elif value not in _OFF[name]:
            raise InexpressibleError(
                f"sampling parameter {name} is {value}, but the OpenAI API has no such parameter; leave it "
                "out, or set the engine's dialect to that of its server (vllm-chat, sglang-chat)"
            )
    if keys.get("top_k") == 0:
        keys["top_k"] = -1  # what both engines call no limit; SGLang refuses 0
    return keys


def extra_keys(sampling: SamplingParams, *own: str) -> Mapping[str, Any]:
    """`sampling.extra`, which goes over everything else in a request. InexpressibleError if it names what
    only the client may set: `_ONE_TURN` and `own`."""
    if taken := sorted((_ONE_TURN | set(own)) & sampling.extra.keys()):
        instead = "set logprobs to how many" if taken[0] == "top_logprobs" else "leave it out of them"
        raise InexpressibleError(
            f"extra sampling key {taken[0]!r} is set by the model client itself; {instead}"
        )
    return sampling.extra


def conversation_keys(question: Question, *, reasoning_key: str = "") -> JsonObject:
    """`model`, `messages` and `tools`. Reasoning of earlier answers is `reasoning_content`, and also under
    `reasoning_key` where the engine has a newer name for it."""
    messages = [message.to_openai() for message in question.messages]
    if reasoning_key:
        for message in messages:
            if "reasoning_content" in message:
                message[reasoning_key] = message["reasoning_content"]
    keys: JsonObject = {"model": question.model, "messages": messages}
    if question.tools:
        keys["tools"] = list(question.tools)
    return keys


def heads_wanted(sampling: SamplingParams) -> int:
    """How many candidates of each sampled token are wanted."""
    return sampling.logprobs or 0
