"""A conversation as token ids, rendered by vLLM itself before it samples."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from env_worker.model.dialects.reading import aside
from env_worker.model.errors import MalformedAnswerError
from env_worker.model.fields.json_values import FieldError, get_list, get_object, integers
from env_worker.model.fields.sizes import check_sent, check_sent_ids

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.domain import Int32Array
    from env_worker.model.dialects.base import Post, Question

_PATH = "chat/completions/render"
_FEWER_IMAGES = "send fewer or smaller images, or set the engine's dialect to vllm-chat"


class Rendered(NamedTuple):
    """vLLM's request for `/inference/v1/generate`, without what it leaves unset, and the prompt's ids."""

    request: Mapping[str, Any]
    prompt_ids: Int32Array

    @property
    def sampling_params(self) -> Mapping[str, Any]:
        """As vLLM's defaults and the chat request have made them."""
        return get_object(self.request, "sampling_params")

    def rows_from(self, question: Question) -> int:
        """From where on routing rows are wanted, now that the prompt is known: from the beginning if it is
        not the continuation of what the model has seen."""
        known = question.known
        same = len(known) < len(self.prompt_ids) and np.array_equal(self.prompt_ids[: len(known)], known)
        return max(len(known) - 1, 0) if same else 0


async def render(post: Post, chat_request: Mapping[str, Any]) -> Rendered:
    """Render a chat request. MalformedAnswerError if what comes back has no prompt, or cannot be sent on."""
    response = await post(_PATH, chat_request)
    return await aside(partial(_rendered, response), response)


def _rendered(response: Mapping[str, Any]) -> Rendered:
    try:
        ids = get_list(response, "token_ids")
        check_sent_ids(ids, _PATH)
        prompt_ids = integers(ids, "token_ids")
    except FieldError as error:
        raise MalformedAnswerError(
            f"{_PATH} gave no prompt: {error}; it needs vLLM 0.24 or later, without --tokens-only"
        ) from None
    if not len(prompt_ids):
        raise MalformedAnswerError(f"{_PATH} gave a prompt without tokens; check the model's chat template")
    # Unset values arrive as null, which generate would refuse where it expects a number. The id would be the
    # same for each try, of which an earlier one may still be running.
    request = _set_values(response)
    request.pop("request_id", None)
    request["sampling_params"] = _set_values(get_object(response, "sampling_params"))
    sent = {key: value for key, value in request.items() if key != "token_ids"}
    check_sent(sent, f"answer of {_PATH}", _FEWER_IMAGES)
    return Rendered(request, prompt_ids)


def _set_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
