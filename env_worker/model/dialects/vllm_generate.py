"""vLLM's `/inference/v1/generate`: tokens in, tokens out, with the sampling masks that no other path has.

A turn is three requests: the conversation is rendered to ids, sampled, and parsed back to a message. The
middle one could parse by itself since 0.33 (`output_mode: "derender"`), but then names the candidates of each
token by their text, and older servers refuse the word.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import Message
from env_worker.model.dialects.base import LOGPROBS, TOKEN_IDS
from env_worker.model.dialects.reading import (
    ROUTED_EXPERTS,
    SAMPLING_MASK,
    AnswerReader,
    aside,
    asked_for,
    begin,
    read_aside,
)
from env_worker.model.dialects.rendering import render
from env_worker.model.dialects.start import BAD_REQUEST
from env_worker.model.dialects.vllm_chat import START_KEY, chat_keys
from env_worker.model.errors import EngineRefusedError, MalformedAnswerError
from env_worker.model.fields.json_values import (
    FieldError,
    get_list,
    get_object,
    integers,
    shown,
)
from env_worker.model.fields.logprob_shapes import chat_candidates, chat_sampled
from env_worker.model.fields.messages import assistant_message, finish_reason, first_choice
from env_worker.model.fields.routing import vllm_rows
from env_worker.model.fields.sampling import extra_keys, heads_wanted
from env_worker.model.fields.sizes import check_sent, check_sent_ids

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.domain import JsonObject
    from env_worker.model.dialects.base import Answer, EngineOptions, Post, Question
    from env_worker.model.dialects.rendering import Rendered

_PATH = "/inference/v1/generate"
_DERENDER_PATH = "chat/completions/derender"
_ABOVE_ZERO: Final[Mapping[str, float]] = MappingProxyType({"temperature": 1.0, "top_k": 0})
"""What a sampling mask needs, and what vLLM takes where a request does not say it."""
_NO_FLAG: Final = "start vLLM with --return-sampling-mask"


class VllmGenerate:
    """vLLM 0.24 and later, started with `--enable-scale-out` where it knows that flag. Parameters in
    `sampling.extra` are those of chat requests."""

    @property
    def name(self) -> str:
        return "vllm-generate"

    @property
    def endpoint(self) -> str:
        return _PATH

    async def ask(self, question: Question, options: EngineOptions, post: Post) -> Answer:
        """See `Dialect.ask`."""
        chat_request = {
            **chat_keys(question),
            "logprobs": True,
            "top_logprobs": heads_wanted(question.sampling),
            **extra_keys(question.sampling, "token_ids"),
        }
        rendered = await render(post, chat_request)
        start = rendered.rows_from(question) if ROUTED_EXPERTS in options.arrays else 0
        try:
            response = await post(_PATH, _body(question, rendered, start))
        except EngineRefusedError as refusal:
            # A server with --return-sampling-mask refuses what it can give no mask for; one without it does
            # not, and no response tells which it is.
            asked = refusal.status == BAD_REQUEST and SAMPLING_MASK in options.arrays
            if asked and (why := _no_mask(rendered.sampling_params)):
                refusal.args = (f"{refusal}; {why}",)
            raise
        parsed = await self._parsed(post, rendered, chat_request, response)
        return await read_aside(
            partial(_read, response, parsed, rendered, question, options, start), response, parsed
        )

    async def _parsed(
        self, post: Post, rendered: Rendered, chat_request: JsonObject, response: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """A chat response with the message that the sampled ids are. MalformedAnswerError if there are none,
        or they cannot be sent on."""
        sampled = await aside(partial(_sampled, first_choice(response)), response)
        if not sampled["token_ids"]:  # as when it was aborted at once; derender refuses it
            message = Message.assistant().to_openai()
            return {"choices": [{"message": message, "finish_reason": sampled["finish_reason"]}]}
        prompt_ids = rendered.prompt_ids.tolist()
        request = {
            "model": chat_request["model"],
            "generate_response": {
                "request_id": "derender",
                "choices": [sampled],
                "prompt_token_ids": prompt_ids,
            },
            "prompt_tokens": len(prompt_ids),
            "chat_request": chat_request,
        }
        return await post(_DERENDER_PATH, request)


def _sampled(choice: Mapping[str, Any]) -> JsonObject:
    """What derender needs of a choice."""
    try:
        ids = get_list(choice, "token_ids")
        check_sent_ids(ids, _PATH)
        integers(ids, "token_ids")
    except FieldError as error:
        raise MalformedAnswerError(f"{_PATH} gave no tokens to make a message of: {error}") from None
    stop = choice.get("stop_reason")
    check_sent(stop, f"stop_reason of {_PATH}")
    return {
        "index": 0,
        "token_ids": ids,
        "finish_reason": finish_reason(choice) or None,
        "stop_reason": stop,
    }


def _body(question: Question, rendered: Rendered, start: int) -> JsonObject:
    sampling_params = {**rendered.sampling_params, "logprobs": heads_wanted(question.sampling)}
    if start:
        sampling_params[START_KEY] = start
    return {
        **rendered.request,
        "model": question.model,
        "sampling_params": sampling_params,
        "stream": False,
        "return_token_ids": True,
    }


def _no_mask(sampling_params: Mapping[str, Any]) -> str:
    """Why no sampling mask can come, whatever the server was started with; "" where one can.

    `sampling_params` are those of the rendered request, with the defaults that the server has for its model.
    """
    for name, default in _ABOVE_ZERO.items():
        value = sampling_params.get(name, default)
        if isinstance(value, int | float) and value <= 0:
            told = shown(value) if name in sampling_params else "not set"
            return (
                "vLLM has sampling masks only where temperature and top_k are above 0, and "
                f"{name} is {told}: set it in the sampling parameters"
            )
    return ""


def _read(
    response: Mapping[str, Any],
    parsed: Mapping[str, Any],
    rendered: Rendered,
    question: Question,
    options: EngineOptions,
    start: int,
) -> Answer:
    choice, chat_choice = first_choice(response), first_choice(parsed)
    answer = begin(response, choice, assistant_message(chat_choice))
    answer.finish_reason = finish_reason(chat_choice) or answer.finish_reason
    answer.model = answer.model or question.model
    reader = AnswerReader(answer, asked_for(question, options, TOKEN_IDS, LOGPROBS))
    # Given back from 0.28 on, with the places of images filled in.
    prompt = response if response.get("prompt_token_ids") is not None else rendered.request
    key = "token_ids" if prompt is rendered.request else "prompt_token_ids"
    if not reader.token_ids((prompt, key), (choice, "token_ids"), get_object(response, "usage")):
        return answer
    reader.logprobs(partial(chat_sampled, choice))
    reader.top_logprobs(partial(chat_candidates, choice), heads_wanted(question.sampling))
    reader.routing(
        lambda tokens: vllm_rows(choice.get("routed_experts"), None, options, tokens=tokens, start=start)
    )
    reader.sampling_mask(choice, SAMPLING_MASK, hint=_no_mask(rendered.sampling_params) or _NO_FLAG)
    reader.weight_versions(choice, "weight_versions")
    return answer
