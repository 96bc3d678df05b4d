"""An answer that no node of a trace can carry is none."""

from __future__ import annotations

import functools
import importlib
import logging
from typing import TYPE_CHECKING, Any, Final

from env_worker.envs.verifiers.messages import message, openai_message
from env_worker.model.dialects.base import Answer
from env_worker.model.dialects.reading import check_node
from env_worker.model.errors import MalformedAnswerError
from env_worker.model.fields.sizes import check_message

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_UNPROCESSABLE: Final = 422
"""For which harnesses do not try again, nor take the prompt for too long."""


def refuse_large() -> None:
    """Have verifiers fail the call whose answer is too large for a node, as our own clients do: it would take
    it, score it, and the run would end without an episode, blamed on the environment. For all rollouts of
    this process, whatever client they have; again: changes nothing.
    """
    try:
        turn: Any = importlib.import_module("verifiers.v1.graph").PendingTurn
        failure: type[Exception] = importlib.import_module("verifiers.v1.errors").ProviderError
        original: Callable[[Any, Any], int] = turn.commit
    except (ImportError, AttributeError) as error:
        logger.warning(
            "this version of verifiers is not known here (%s): an answer of more than one message can carry "
            "ends its run with MESSAGE_TOO_LARGE",
            error,
        )
        return
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def commit(self: Any, response: Any) -> int:
        try:
            _check(response)
        except MalformedAnswerError as error:
            raise failure(str(error), status_code=_UNPROCESSABLE) from None  # type: ignore[call-arg]
        return original(self, response)

    turn.commit = commit


def _check(response: Any) -> None:
    check_message(openai_message(response.message))  # before it is written as JSON again
    answer = Answer(message(response.message))
    if (tokens := response.tokens) is not None:
        answer.prompt_ids, answer.sampled_ids = tokens.prompt_ids, tokens.completion_ids
    check_node(answer)
