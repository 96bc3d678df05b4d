"""What the caller of a run hears when it was not carried to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from envtrio.v1 import errors_pb2

from env_worker.domain.ledger import Entry, Event
from env_worker.status import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envtrio.v1.errors_pb2 import ErrorReason

    from env_worker.delta.limits import MessageTooLargeError
    from env_worker.domain import EpisodeError

RETRY_SECONDS: Final = 1.0
"""When to send a run again that a full queue or table refused."""

# What the caller hears when something from outside ended the run.
_ENDINGS: Final[Mapping[Event, tuple[ErrorReason.ValueType, str]]] = {
    Event.CANCEL: (errors_pb2.ERROR_REASON_CANCEL_REQUESTED, "a Cancel named it; nothing of it is kept"),
    Event.DEADLINE: (
        errors_pb2.ERROR_REASON_DEADLINE,
        "its deadline passed; allow it more time, or ask for less",
    ),
    Event.CALLER_LOST: (
        errors_pb2.ERROR_REASON_CALLER_LOST,
        "its caller left it, or its stream broke; nothing of it is kept",
    ),
    Event.BROKEN: (errors_pb2.ERROR_REASON_CALLER_LOST, "its stream broke; nothing of it is kept"),
    Event.SEND_FAILED: (errors_pb2.ERROR_REASON_CALLER_LOST, "its stream broke; nothing of it is kept"),
    Event.SESSION_LOST: (errors_pb2.ERROR_REASON_SESSION_LOST, "its session was lost; nothing of it is kept"),
    Event.STOP: (
        errors_pb2.ERROR_REASON_WORKER_LOST,
        "the worker stops and its drain time is over; the run may have had effects: send it under a new "
        "request_id",
    ),
    Event.REFUSED: (
        errors_pb2.ERROR_REASON_NOT_ADMITTED,
        "the worker stops and had not begun it; send it to another worker, or later",
    ),
}


def ending(entry: Entry) -> Refusal:
    """What the caller of a run hears that something from outside has settled."""
    assert entry.cause is not None, "an entry that is settled has a cause"
    reason, what = _ENDINGS.get(
        entry.cause, (errors_pb2.ERROR_REASON_INTERNAL, f"it ended by {entry.cause.name}")
    )
    name = entry.request_id[:8]
    return Refusal(reason, f"run {name} has ended: {what}", request_id=name)


def full(reason: ErrorReason.ValueType, error: Exception, **metadata: object) -> Refusal:
    """A refusal for want of room, with the time to come again."""
    return Refusal(reason, str(error), retry_seconds=RETRY_SECONDS, **metadata)


def environment_failed(environment: str, error: EpisodeError) -> Refusal:
    """The environment raised `error` before its first trace."""
    return Refusal(
        errors_pb2.ERROR_REASON_ENVIRONMENT_FAILED,
        f"environment {environment!r} raised {error.type} before its first trace: {error.message}; "
        "the worker's log has the traceback",
        type=error.type,
    )


def hook_failed(error: EpisodeError) -> Refusal:
    """The hook's `keep` raised `error`."""
    return Refusal(
        errors_pb2.ERROR_REASON_HOOK_FAILED,
        f"the episode hook's keep raised {error.type}: {error.message}; see the worker's log",
    )


def hook_unusable(error: EpisodeError) -> Refusal:
    """The hook cannot keep for this worker; its `keep` was not called."""
    return Refusal(
        errors_pb2.ERROR_REASON_HOOK_FAILED,
        f"the episode hook cannot be used by this worker, {error.type}: {error.message}",
    )


def too_large(error: MessageTooLargeError) -> Refusal:
    """Something that must cross in one message does not fit."""
    return Refusal(
        errors_pb2.ERROR_REASON_MESSAGE_TOO_LARGE,
        str(error),
        field=error.field,
        value=error.value,
        limit=error.limit,
    )


def own_fault(name: str, error: EpisodeError) -> Refusal:
    """The worker itself has failed at the run of that name."""
    return Refusal(
        errors_pb2.ERROR_REASON_INTERNAL,
        f"run {name}: {error.type}: {error.message}; report it with the worker's log",
    )
