"""Exceptions that tell the worker more than "it failed"."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from env_worker.domain.records import EpisodeError


class InvalidTaskError(ValueError):
    """The task cannot be run as it is; say which key, which value, what is allowed.

    Raised by `validate`, or before the first trace, the caller gets INVALID_ARGUMENT and no episode. Raised
    later it is an error of the episode like any other.
    """


class ToolError(Exception):
    """A tool of the environment failed, for no fault of the model: its service is down, its sandbox is gone.

    What a tool answers to a wrong call is no such error but a message to the model.
    """

    phase: ClassVar[str] = "tool"
    """Where it happened, in the episode's errors."""


class RemoteError(Exception):
    """What an environment raised in a process of its own; `record` says what it was there."""

    def __init__(self, record: EpisodeError) -> None:
        super().__init__(record.message)
        self.record = record


class RemoteInvalidTaskError(RemoteError, InvalidTaskError):
    """The same, of an InvalidTaskError."""
