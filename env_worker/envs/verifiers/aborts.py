"""An answer that the engine has aborted is none."""

from __future__ import annotations

import functools
import importlib
import logging
from typing import TYPE_CHECKING, Any, Final

from env_worker.model.fields.messages import GIVEN_UP

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_UNAVAILABLE: Final = 503
"""For which harnesses try again, as they do of an engine that takes new weights and says so."""


def refuse_aborted() -> None:
    """Have verifiers' train client fail the call where the engine says that it has aborted the answer, as
    vLLM does when it takes new weights: verifiers would take the half of it for the whole, and score that.
    For all rollouts of this process; again: changes nothing.

    The eval client fails such a call by itself.
    """
    try:
        train: Any = importlib.import_module("verifiers.v1.clients.train")
        failure: type[Exception] = importlib.import_module("verifiers.v1.errors").ProviderError
        original: Callable[..., Any] = train.response_from_generate
    except (ImportError, AttributeError) as error:
        logger.warning(
            "this version of verifiers is not known here (%s): an answer that the engine aborts counts as "
            "one, and is scored",
            error,
        )
        return
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def response_from_generate(result: dict[str, Any], *more: Any, **named: Any) -> Any:
        word = result.get("finish_reason")
        if isinstance(word, str) and word.lower() in GIVEN_UP:
            raise failure(
                f"the engine ended its answer with finish_reason {word!r}, so it is none",
                status_code=_UNAVAILABLE,  # type: ignore[call-arg]
            )
        return original(result, *more, **named)

    train.response_from_generate = response_from_generate
