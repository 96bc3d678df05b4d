"""How asking an engine fails. An environment may catch these; else they end its episode, as data."""

from __future__ import annotations

from typing import ClassVar


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


class MalformedAnswerError(EngineError):
    """The engine's response is not what its API promises, so there is no message in it."""
