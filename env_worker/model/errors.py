"""How asking an engine fails. An environment may catch these; else they end its episode, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from env_worker.domain import EpisodeError


class EngineError(Exception):
    """The engine gave no answer that can be used.

    `status` is its HTTP status, or None where no response came; `retryable` says that the same request may be
    answered later.
    """

    phase: ClassVar[str] = "model"
    """Where it happened, in the episode's errors."""

    def __init__(self, message: str, *, status: int | None = None, retryable: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.retryable = retryable


class EngineUnreachableError(EngineError):
    """No response came: the connection failed, broke in mid-body, or timed out."""


class EngineRefusedError(EngineError):
    """The engine answered with an error status; the message has its own words."""


class EngineAbortedError(EngineError):
    """The engine gave the request up, and says so in the place of a whole answer: it was paused, was told to
    abort it, or failed in its midst."""


class InexpressibleError(EngineError):
    """The dialect cannot express what is asked for, as a sampling parameter that its API has not got; no
    answer was asked for. The message names it and the next step, and has none of the engine's words."""


class MalformedAnswerError(EngineError):
    """The engine's response is not what its API promises, so there is no message in it."""


def loggable(failure: EpisodeError, raised: BaseException, words: str) -> str:
    """`words` on a failure, for a log; of an engine's only what it was, since its words may be those of a
    prompt. `raised` is what `failure` records."""
    if failure.phase != EngineError.phase or isinstance(raised, InexpressibleError):
        return words
    status = getattr(raised, "status", None)
    return f"{failure.type}, status={status}; the engine's words are not logged"
