"""The plain OpenAI chat API: text and tool calls, and nothing per token."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from env_worker.model.dialects.reading import (
    ROUTED_EXPERTS,
    SAMPLING_MASK,
    TOP_LOGPROBS,
    AnswerReader,
    asked_for,
    begin,
    read_aside,
)
from env_worker.model.fields.messages import assistant_message, first_choice
from env_worker.model.fields.sampling import OPENAI_NAMES, conversation_keys, extra_keys, sampling_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.model.dialects.base import Answer, EngineOptions, Post, Question

_NO_IDS = "dialect openai-chat has no token ids; set the dialect to that of the engine's server"


class OpenAIChat:
    """Any server of `/v1/chat/completions`.

    Sends OpenAI's own parameters and `sampling.extra`; InexpressibleError for any other typed one.
    """

    @property
    def name(self) -> str:
        return "openai-chat"

    @property
    def endpoint(self) -> str:
        return "/chat/completions"

    async def ask(self, question: Question, options: EngineOptions, post: Post) -> Answer:
        """See `Dialect.ask`."""
        body = {
            **conversation_keys(question),
            **sampling_keys(question.sampling, OPENAI_NAMES),
            **extra_keys(question.sampling),
        }
        response = await post("chat/completions", body)
        return await read_aside(partial(_read, response, question, options), response)


def _read(response: Mapping[str, Any], question: Question, options: EngineOptions) -> Answer:
    choice = first_choice(response)
    reader = AnswerReader(begin(response, choice, assistant_message(choice)), asked_for(question, options))
    for field in (ROUTED_EXPERTS, SAMPLING_MASK, TOP_LOGPROBS):
        reader.lacks(field, _NO_IDS)
    return reader.answer
