"""SGLang's `/v1/chat/completions`: ids, log-probabilities, masks and routing of its `/generate`, in
`meta_info`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from env_worker.model.dialects.base import LOGPROBS, TOKEN_IDS
from env_worker.model.dialects.reading import (
    ROUTED_EXPERTS,
    SAMPLING_MASK,
    AnswerReader,
    asked_for,
    begin,
    read_aside,
)
from env_worker.model.dialects.start import post_from
from env_worker.model.fields.json_values import get_count, get_object
from env_worker.model.fields.logprob_shapes import meta_candidates, meta_sampled
from env_worker.model.fields.messages import assistant_message, finish_reason, first_choice
from env_worker.model.fields.routing import sglang_rows
from env_worker.model.fields.sampling import (
    ENGINE_NAMES,
    conversation_keys,
    extra_keys,
    heads_wanted,
    sampling_keys,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.domain import JsonObject
    from env_worker.model.dialects.base import Answer, EngineOptions, Post, Question

_START_KEY = "routed_experts_start_len"


class SGLangChat:
    """SGLang 0.5.23 and near it. Routing rows need `EngineOptions.routing_shape`, as they come without."""

    @property
    def name(self) -> str:
        return "sglang-chat"

    @property
    def endpoint(self) -> str:
        return "/chat/completions"

    async def ask(self, question: Question, options: EngineOptions, post: Post) -> Answer:
        """See `Dialect.ask`."""
        routed = ROUTED_EXPERTS in options.arrays
        response, start = await post_from(
            post,
            "chat/completions",
            _body(question, options),
            _START_KEY,
            question.rows_from if routed else 0,
        )
        return await read_aside(partial(_read, response, question, options, start), response)


def _body(question: Question, options: EngineOptions) -> JsonObject:
    body: JsonObject = {
        **conversation_keys(question),
        **sampling_keys(question.sampling, ENGINE_NAMES),
        "logprobs": True,
        "top_logprobs": heads_wanted(question.sampling),
        "return_token_ids": True,
        "return_prompt_token_ids": True,
        "return_meta_info": True,
    }
    # Servers that do not record them may refuse these two.
    if ROUTED_EXPERTS in options.arrays:
        body["return_routed_experts"] = True
    if SAMPLING_MASK in options.arrays:
        body["return_sampling_mask"] = True
    return {**body, **extra_keys(question.sampling)}


def _read(response: Mapping[str, Any], question: Question, options: EngineOptions, start: int) -> Answer:
    choice = first_choice(response)
    meta = get_object(choice, "meta_info")
    answer = begin(response, choice, assistant_message(choice))
    answer.finish_reason = answer.finish_reason or finish_reason(meta)
    if answer.cached_tokens is None:
        answer.cached_tokens = get_count(meta, "cached_tokens")
    reader = AnswerReader(answer, asked_for(question, options, TOKEN_IDS, LOGPROBS))
    usage = get_object(response, "usage")
    if not reader.token_ids((choice, "prompt_token_ids"), (choice, "response_token_ids"), usage):
        return answer
    reader.logprobs(partial(meta_sampled, meta))
    reader.top_logprobs(partial(meta_candidates, meta), heads_wanted(question.sampling))
    reader.routing(partial(_rows, response, choice, options, start))
    reader.sampling_mask(meta, "output_token_sampling_mask", hint="this needs SGLang 0.5.23 or later")
    # On OpenAI's endpoints beside the choices, in /generate's answer within.
    beside = get_object(response, "metadata")
    reader.weight_versions(beside if beside.get("weight_versions") is not None else meta, "weight_versions")
    return answer


def _rows(
    response: Mapping[str, Any], choice: Mapping[str, Any], options: EngineOptions, start: int, tokens: int
) -> Any:
    # Within meta_info where that is returned, else beside the choices; in older versions on the choice.
    places = (
        get_object(choice, "meta_info"),
        get_object(response, "sglext"),
        get_object(choice, "sglext"),
        get_object(choice, "sgl_ext"),
        choice,
    )
    found = (place[ROUTED_EXPERTS] for place in places if place.get(ROUTED_EXPERTS) is not None)
    return sglang_rows(next(found, None), options, tokens=tokens, start=start)
