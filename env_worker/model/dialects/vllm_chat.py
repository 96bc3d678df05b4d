"""vLLM's `/v1/chat/completions`: one request a turn, everything per token but sampling masks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

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
from env_worker.model.fields.json_values import get_object
from env_worker.model.fields.logprob_shapes import chat_candidates, chat_sampled
from env_worker.model.fields.messages import assistant_message, first_choice
from env_worker.model.fields.routing import vllm_rows
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

REASONING_KEY: Final = "reasoning"
"""vLLM's name for it, where others have `reasoning_content`."""
START_KEY: Final = "routed_experts_prompt_start"

_USUAL_MOST: Final = 20
"""vLLM's own limit of candidates (`--max-logprobs`) unless its operator has raised it."""
NO_MASKS: Final = "vLLM has sampling masks on /inference/v1/generate only; set the dialect to vllm-generate"


class VllmChat:
    """vLLM 0.12 and later; what newer ones give beyond that is asked for, and ignored by older ones."""

    @property
    def name(self) -> str:
        return "vllm-chat"

    @property
    def endpoint(self) -> str:
        return "/chat/completions"

    async def ask(self, question: Question, options: EngineOptions, post: Post) -> Answer:
        """See `Dialect.ask`."""
        routed = ROUTED_EXPERTS in options.arrays
        response, start = await post_from(
            post, "chat/completions", _body(question), START_KEY, question.rows_from if routed else 0
        )
        return await read_aside(partial(_read, response, question, options, start), response)


def chat_keys(question: Question) -> JsonObject:
    """The conversation and how to sample it, without `sampling.extra`, as vLLM's chat requests have them."""
    return {
        **conversation_keys(question, reasoning_key=REASONING_KEY),
        **sampling_keys(question.sampling, ENGINE_NAMES),
    }


def _body(question: Question) -> JsonObject:
    return {
        **chat_keys(question),
        "logprobs": True,
        "top_logprobs": _candidates(heads_wanted(question.sampling)),
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "return_weight_versions": True,
        "session_id": question.conversation,
        **extra_keys(question.sampling),
    }


def _candidates(width: int) -> int:
    """How many to ask for: the sampled token may be sent twice, and takes the last one's place if it is not
    among the best. No more than usual servers allow: they would refuse the request."""
    return width + 1 if 0 < width < _USUAL_MOST else width


def _read(response: Mapping[str, Any], question: Question, options: EngineOptions, start: int) -> Answer:
    choice = first_choice(response)
    reader = AnswerReader(
        begin(response, choice, assistant_message(choice)),
        asked_for(question, options, TOKEN_IDS, LOGPROBS),
    )
    usage = get_object(response, "usage")
    if not reader.token_ids((response, "prompt_token_ids"), (choice, "token_ids"), usage):
        return reader.answer
    reader.logprobs(partial(chat_sampled, choice))
    reader.top_logprobs(partial(chat_candidates, choice), heads_wanted(question.sampling))
    reader.routing(
        lambda tokens: vllm_rows(
            choice.get("routed_experts"),
            response.get("prompt_routed_experts"),
            options,
            tokens=tokens,
            start=start,
        )
    )
    reader.lacks(SAMPLING_MASK, NO_MASKS)
    reader.weight_versions(choice, "weight_versions")
    return reader.answer
