"""vLLM's `/v1/completions`, on a conversation that vLLM has rendered: the answer is its text."""

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
from env_worker.model.dialects.rendering import render
from env_worker.model.dialects.start import post_from
from env_worker.model.dialects.vllm_chat import NO_MASKS, START_KEY, chat_keys
from env_worker.model.errors import InexpressibleError
from env_worker.model.fields.json_values import get_object
from env_worker.model.fields.logprob_shapes import completion_candidates, completion_sampled
from env_worker.model.fields.messages import first_choice, text_message
from env_worker.model.fields.routing import vllm_rows
from env_worker.model.fields.sampling import ENGINE_NAMES, extra_keys, heads_wanted, sampling_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.domain import JsonObject
    from env_worker.model.dialects.base import Answer, EngineOptions, Post, Question
    from env_worker.model.dialects.rendering import Rendered


class VllmCompletions:
    """vLLM 0.24 and later. Nothing parses the text: reasoning and tool calls stay in it, as the model wrote
    them, for environments that parse themselves. InexpressibleError for a conversation with images or audio,
    which completions would not see."""

    @property
    def name(self) -> str:
        return "vllm-completions"

    @property
    def endpoint(self) -> str:
        return "/completions"

    async def ask(self, question: Question, options: EngineOptions, post: Post) -> Answer:
        """See `Dialect.ask`."""
        extra = extra_keys(question.sampling, "prompt")
        rendered = await render(post, {**chat_keys(question), **extra})
        if rendered.request.get("features"):
            raise InexpressibleError(
                "the conversation has images or audio, which vLLM's completions do not take; set the "
                "engine's dialect to vllm-chat or vllm-generate"
            )
        body = {**_body(question, rendered), **extra}
        routed = ROUTED_EXPERTS in options.arrays
        response, start = await post_from(
            post, "completions", body, START_KEY, rendered.rows_from(question) if routed else 0
        )
        return await read_aside(partial(_read, response, question, options, start), response)


def _body(question: Question, rendered: Rendered) -> JsonObject:
    sampling = sampling_keys(question.sampling, ENGINE_NAMES)
    # Left out it would be 16; what rendering has made of it is what chat would allow.
    most = sampling.pop("max_completion_tokens", None) or rendered.sampling_params.get("max_tokens")
    return {
        **sampling,
        **({} if most is None else {"max_tokens": most}),
        "model": question.model,
        "prompt": rendered.prompt_ids.tolist(),
        "logprobs": heads_wanted(question.sampling),
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "return_weight_versions": True,
        "session_id": question.conversation,
    }


def _read(response: Mapping[str, Any], question: Question, options: EngineOptions, start: int) -> Answer:
    choice = first_choice(response)
    reader = AnswerReader(
        begin(response, choice, text_message(choice)), asked_for(question, options, TOKEN_IDS, LOGPROBS)
    )
    usage = get_object(response, "usage")
    if not reader.token_ids((choice, "prompt_token_ids"), (choice, "token_ids"), usage):
        return reader.answer
    reader.logprobs(partial(completion_sampled, choice))
    reader.top_logprobs(partial(completion_candidates, choice), heads_wanted(question.sampling))
    reader.routing(
        lambda tokens: vllm_rows(
            choice.get("routed_experts"),
            choice.get("prompt_routed_experts", response.get("prompt_routed_experts")),
            options,
            tokens=tokens,
            start=start,
        )
    )
    reader.lacks(SAMPLING_MASK, NO_MASKS)
    reader.weight_versions(choice, "weight_versions")
    return reader.answer
