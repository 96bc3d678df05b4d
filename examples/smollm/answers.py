"""Answers as vLLM writes them: chat completions, `/inference/v1/generate`, and what is around it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from examples.smollm.asked import (
    RefusedError,
    chat_heads,
    check_possible,
    field,
    generate_heads,
    ids_of,
    prompt_of,
    wanted_of,
)
from examples.smollm.generation import text_of
from examples.smollm.sampling import Candidate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from examples.smollm.generation import Generated, Wanted
    from examples.smollm.model import Model

FILTERED = -9999.0
"""vLLM's log-probability of a token that was not left by the filters."""
_MODES = ("tokens", "text", "derender")


class Answers:
    """Reads requests, and writes what came of them. `name` is what the model is served as."""

    def __init__(self, model: Model, name: str) -> None:
        self._model = model
        self._name = name
        self._created = int(time.time())

    def models(self) -> dict[str, Any]:
        """Of `/v1/models`."""
        told = {"id": self._name, "object": "model", "created": self._created, "owned_by": "smollm"}
        return {"object": "list", "data": [told | {"max_model_len": self._model.context}]}

    def read_chat(self, body: Mapping[str, Any]) -> Wanted:
        """What a chat request wants."""
        check_possible(body, self._name)
        return wanted_of(body, prompt_of(body, self._model), chat_heads(body), self._model)

    def chat(self, body: Mapping[str, Any], generated: Generated) -> dict[str, Any]:
        """The chat completion. Sampling masks have no place in it, as in vLLM."""
        told = field(body, "return_token_ids", bool, default=False)
        versions = field(body, "return_weight_versions", bool, default=False)
        as_ids = field(body, "return_tokens_as_token_ids", bool, default=False)
        choice = {
            "index": 0,
            "message": self._message(generated.ids, generated.stop_reason),
            "logprobs": self._chat_logprobs(generated, as_ids=as_ids),
            "finish_reason": generated.finish_reason,
            "stop_reason": generated.stop_reason,
            "token_ids": generated.ids if told else None,
            "routed_experts": None,
            "weight_versions": self._versions(generated) if versions else None,
        }
        return {
            "id": "chatcmpl-smollm",
            "object": "chat.completion",
            **self._frame(generated),
            "choices": [choice],
            "prompt_token_ids": list(generated.wanted.prompt) if told else None,
        }

    def render(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The generate request that a chat request amounts to."""
        wanted = self.read_chat(body)
        sampling = wanted.sampling
        return {
            "request_id": "chatcmpl-smollm",
            "model": self._name,
            "token_ids": list(wanted.prompt),
            "sampling_params": {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "seed": sampling.seed,
                "max_tokens": wanted.most,
                "stop": list(wanted.stops),
                "stop_token_ids": sorted(wanted.stop_ids),
                "logprobs": sampling.heads,
            },
            "stream": False,
        }

    def read_generate(self, body: Mapping[str, Any]) -> Wanted:
        """What a generate request wants."""
        check_possible(body, self._name)
        sampling = field(body, "sampling_params", dict)
        if sampling is None:
            raise RefusedError("sampling_params is missing, expected an object; it may be empty")
        check_possible(sampling, self._name)
        if (mode := body.get("output_mode", "tokens")) not in _MODES:
            raise RefusedError(f"output_mode is {ascii(mode)[:100]}, expected {', '.join(_MODES)}")
        prompt = ids_of(body.get("token_ids"), "token_ids", self._model)
        return wanted_of(sampling, prompt, generate_heads(sampling), self._model)

    def generate(self, body: Mapping[str, Any], generated: Generated) -> dict[str, Any]:
        """The answer. It has sampling masks where the request sets `top_k`, and the weights' label always."""
        mode = body.get("output_mode", "tokens")
        told = field(body, "return_token_ids", bool, default=False)
        ids = generated.ids
        bounded = generated.wanted.sampling.bounded
        choice = {
            "index": 0,
            "token_ids": ids,
            "finish_reason": generated.finish_reason,
            "stop_reason": generated.stop_reason,
            # Integer ids with tokens alone, as in vLLM: with text and message come texts.
            "logprobs": _logprobs(generated)
            if mode == "tokens"
            else self._chat_logprobs(generated, as_ids=False),
            "sampling_mask": [draw.kept for draw in generated.draws] if bounded else None,
            "routed_experts": None,
            "weight_versions": self._versions(generated),
        }
        if mode == "text":
            choice["text"] = text_of(self._model, ids, generated.stop_reason)
        elif mode == "derender":
            choice["message"] = self._message(ids, generated.stop_reason)
        return {
            "request_id": "generate-tokens-smollm",
            **self._frame(generated),
            "output_mode": mode,
            "choices": [choice],
            "prompt_token_ids": list(generated.wanted.prompt) if told else None,
        }

    def derender(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The chat completion that the tokens of a generate answer amount to."""
        check_possible(body, self._name)
        generated = field(body, "generate_response", dict, default={})
        choices, tokens = [], 0
        for index, choice in enumerate(field(generated, "choices", list, default=[])):
            if not isinstance(choice, dict):
                raise RefusedError(f"choices has {ascii(choice)[:100]}, expected objects")
            ids = ids_of(choice.get("token_ids"), "token_ids", self._model)
            tokens += len(ids)
            reasons = {name: choice.get(name) for name in ("finish_reason", "stop_reason")}
            message = self._message(ids, field(reasons, "stop_reason", str, int))
            choices.append({"index": index, "message": message, "logprobs": None, **reasons})
        if not choices:
            raise RefusedError("generate_response has no choices, expected at least one")
        prompt = field(body, "prompt_tokens", int, default=0)
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        frame = {"id": "chatcmpl-smollm", "object": "chat.completion", "created": self._created}
        return {**frame, "model": self._name, "choices": choices, "usage": usage}

    def _frame(self, generated: Generated) -> dict[str, Any]:
        prompt, sampled = len(generated.wanted.prompt), len(generated.draws)
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
            "prompt_tokens_details": {"cached_tokens": generated.known},
        }
        return {"created": self._created, "model": self._name, "usage": usage}

    def _message(self, ids: list[int], stop_reason: str | int | None) -> dict[str, Any]:
        return {"role": "assistant", "content": text_of(self._model, ids, stop_reason)}

    def _versions(self, generated: Generated) -> list[dict[str, Any]]:
        return [{"version": "default", "start": 0, "end": len(generated.draws)}]

    def _chat_logprobs(self, generated: Generated, *, as_ids: bool) -> dict[str, Any] | None:
        """OpenAI's shape; `as_ids` names tokens `token_id:N`."""
        if (heads := generated.wanted.sampling.heads) is None:
            return None

        def entry(candidate: Candidate) -> dict[str, Any]:
            text = self._model.vocabulary[candidate.token]
            name = f"token_id:{candidate.token}" if as_ids else text.decode("utf-8", "replace")
            return {"token": name, "logprob": candidate.logprob, "bytes": None if as_ids else list(text)}

        content = [
            {
                **entry(draw.head[0]),
                "top_logprobs": [entry(told) for told in _filled(draw.head, heads)[:heads]],
            }
            for draw in generated.draws
        ]
        return {"content": content}


def _filled(head: tuple[Candidate, ...], heads: int) -> list[Candidate]:
    """The head, filled up to `heads` as vLLM does where filters have left fewer: with any other tokens, of
    which it says -9999."""
    others = (token for token in range(heads + len(head)) if token not in {told.token for told in head})
    missing = range(len(head), heads)
    return [
        *head,
        *(Candidate(token, FILTERED, rank + 1) for rank, token in zip(missing, others, strict=False)),
    ]


def _logprobs(generated: Generated) -> dict[str, Any] | None:
    """vLLM's shape of 0.32 on: integer ids and ranks, the sampled token first, beside `heads` others."""
    if (heads := generated.wanted.sampling.heads) is None:
        return None
    content = []
    for draw in generated.draws:
        entries = [
            {"token_id": candidate.token, "logprob": candidate.logprob, "rank": candidate.rank}
            for candidate in _filled(draw.head, heads)
        ]
        content.append({**entries[0], "top_logprobs": entries})
    return {"content": content}
