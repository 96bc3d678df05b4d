"""What can go wrong with a run or a fetch, as exceptions. Knows no grpc, no protobuf: `statuses` translates.

An episode that failed is data (`head.ok` is False) and never an exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envtrio.v1.episode_pb2 import Episode

SHOWN_ID_DIGITS: Final = 8
"""A request_id is a capability: messages and logs show this many of its digits."""


PASSING_REASONS: Final = frozenset(
    {"ARRAY_BUDGET", "DRAINING", "NOT_ADMITTED", "NO_WORKER_READY", "QUEUE_FULL", "TABLE_FULL"}
)
"""Reasons with which a run is refused before it begins, so that it had no effect, and which pass: send it
again later, under a new request_id."""


def shown_id(request_id: str) -> str:
    """The part of a request_id that may be shown."""
    return request_id[:SHOWN_ID_DIGITS]


class EnvError(Exception):
    """A call that could not be carried out.

    Attributes:
        code: name of the gRPC status code, e.g. "UNAVAILABLE"; also set where the client itself failed.
        reason: name of an `ErrorReason` without its prefix, e.g. "WORKER_LOST". Empty where gRPC made the
            status, or the client did for a reason of its own.
        request_id: the run's full id, or empty. A capability: log `shown_id(request_id)` instead.
        metadata: what the message says, for programs: "limit", "value", "field", "worker", ...
        retry_after: seconds after which the server asks the call to be repeated; None where it did not say.
    """

    default_code: ClassVar[str] = "UNKNOWN"
    default_reason: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        reason: str | None = None,
        request_id: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = self.default_code if code is None else code
        self.reason = self.default_reason if reason is None else reason
        self.request_id = request_id
        self.metadata: dict[str, str] = dict(metadata or {})
        self.retry_after = retry_after


class InvalidRequestError(EnvError):
    """A field of the request is malformed. Mend the request."""

    default_code = "INVALID_ARGUMENT"
    default_reason = "INVALID_REQUEST"


class InvalidTaskError(InvalidRequestError):
    """The task is not a JSON object, or the environment refused it. Mend the task."""

    default_reason = "INVALID_TASK"


class EnvironmentNotFoundError(EnvError):
    """No worker serves that environment. `describe()` lists those there are."""

    default_code = "NOT_FOUND"


class DuplicateRequestError(EnvError):
    """That request_id was seen. The first run goes on untouched; send the new one under a new id."""

    default_code = "ALREADY_EXISTS"


class ResourceExhaustedError(EnvError):
    """A bound was reached. Repeat the run under a new request_id after `retry_after`."""

    default_code = "RESOURCE_EXHAUSTED"


class QueueFullError(ResourceExhaustedError):
    """The server's queue is full. Repeat the run under a new request_id after `retry_after`."""


class MessageTooLargeError(ResourceExhaustedError):
    """A message is over the limit; metadata has "field", "value", "limit". Repeating it ends the same way."""

    default_reason = "MESSAGE_TOO_LARGE"


class RunCancelledError(EnvError):
    """The run was ended by a `Cancel`, or because its caller or session was lost. Nothing is kept.

    Also where the episode had arrived, but was taken back before its delivery was confirmed.
    """

    default_code = "CANCELLED"


class RunDeadlineError(EnvError):
    """The run's deadline passed. Nothing is kept."""

    default_code = "DEADLINE_EXCEEDED"


class UnavailableError(EnvError):
    """The server cannot be reached, or has no worker that is ready. Repeat the run later, under a new id."""

    default_code = "UNAVAILABLE"


class WorkerLostError(UnavailableError):
    """The worker was lost while it ran. The run may have had effects, and nobody repeats it for you."""


class DrainingError(UnavailableError):
    """The server is stopping and takes no new runs; this one has not begun. Send it elsewhere, or later."""


class InternalError(EnvError):
    """A fault of the server. Its log tells more."""

    default_code = "INTERNAL"


class HookFailedError(InternalError):
    """The worker's `EpisodeHook.keep` raised; what it had taken was discarded. Mend the hook."""


class EnvironmentFailedError(InternalError):
    """The environment raised before its first trace, so there is no episode."""


class ProtocolMismatchError(EnvError):
    """Client and server speak different protocol generations. Upgrade the older one."""

    default_code = "FAILED_PRECONDITION"


class AssemblyError(EnvError):
    """What was received breaks the grammar of the stream. The run was cancelled; report it."""

    default_code = "INTERNAL"
    default_reason = "PROTOCOL_VIOLATION"


class ValidationError(EnvError):
    """The episode was assembled, but contradicts itself. The run was cancelled; report it."""

    default_code = "INTERNAL"
    default_reason = "PROTOCOL_VIOLATION"


class SessionEndedError(EnvError):
    """The server ended the client's session for good: its runs cannot be confirmed. Make a new client."""

    default_code = "ABORTED"


class DeliveryUncertainError(EnvError):
    """The episode arrived whole, but nobody could say within the window whether its delivery is final.

    Its reason is WORKER_LOST where the worker is lost; then there was no use in waiting. No cancel was sent.

    Attributes:
        episode: the episode, assembled and checked. A fetch of its arrays will tell whether they are there.
    """

    default_code = "UNAVAILABLE"

    def __init__(self, message: str, *, episode: Episode, request_id: str = "", reason: str = "") -> None:
        super().__init__(message, request_id=request_id, reason=reason)
        self.episode = episode


class ArrayBudgetError(ResourceExhaustedError):
    """The worker has no room for one more episode's arrays. Release fetched ones, then send the run again."""

    default_reason = "ARRAY_BUDGET"


class ArraysLostError(EnvError):
    """The worker instance that kept these arrays is gone, and they with it. Drop the episode."""

    default_code = "NOT_FOUND"
    default_reason = "ARRAYS_LOST"


class ArraysNotFoundError(EnvError):
    """The worker has no such arrays: they were released or discarded. Drop the episode."""

    default_code = "NOT_FOUND"
    default_reason = "ARRAYS_NOT_FOUND"


class ArraysIncompleteError(EnvError):
    """A field has a hole, which is never trained on. Drop the episode, or fetch the other fields.

    Its metadata has "field" and "hole": what is missing, and where.
    """

    default_code = "FAILED_PRECONDITION"
    default_reason = "ARRAYS_INCOMPLETE"


class TokenRangeError(EnvError):
    """The token range does not lie within the branch's tokens. Ranges are never cut down to what there is."""

    default_code = "OUT_OF_RANGE"
    default_reason = "TOKEN_RANGE"


class ArrayProtocolError(EnvError):
    """What a worker sent in a fetch contradicts itself, the request or the reference. Report it."""

    default_code = "INTERNAL"
    default_reason = "PROTOCOL_VIOLATION"


class ArraysCorruptError(EnvError):
    """The bytes that arrived are not those that the worker sent: their checksums differ. Fetch them again."""

    default_code = "DATA_LOSS"


class FetchDeadlineError(EnvError):
    """A call for arrays did not end in its time. Repeat it: fetching and releasing may be repeated always."""

    default_code = "DEADLINE_EXCEEDED"


class FetchCancelledError(EnvError):
    """A call for arrays was given up: the client was closed, or another fetch of `fetch_many` failed."""

    default_code = "CANCELLED"


_ANY: Final = ""

# The one place where statuses become exceptions. A reason that is not listed is met by its code's own entry.
_ERRORS: Final[Mapping[tuple[str, str], type[EnvError]]] = {
    ("INVALID_ARGUMENT", "INVALID_TASK"): InvalidTaskError,
    ("INVALID_ARGUMENT", _ANY): InvalidRequestError,
    ("FAILED_PRECONDITION", "PROTOCOL_GENERATION"): ProtocolMismatchError,
    ("FAILED_PRECONDITION", "ARRAYS_INCOMPLETE"): ArraysIncompleteError,
    ("NOT_FOUND", "ENVIRONMENT_NOT_FOUND"): EnvironmentNotFoundError,
    ("NOT_FOUND", "ARRAYS_LOST"): ArraysLostError,
    ("NOT_FOUND", "ARRAYS_NOT_FOUND"): ArraysNotFoundError,
    ("OUT_OF_RANGE", "TOKEN_RANGE"): TokenRangeError,
    ("ALREADY_EXISTS", _ANY): DuplicateRequestError,
    ("RESOURCE_EXHAUSTED", "QUEUE_FULL"): QueueFullError,
    ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE"): MessageTooLargeError,
    ("RESOURCE_EXHAUSTED", "ARRAY_BUDGET"): ArrayBudgetError,
    ("RESOURCE_EXHAUSTED", _ANY): ResourceExhaustedError,
    ("CANCELLED", _ANY): RunCancelledError,
    ("DEADLINE_EXCEEDED", _ANY): RunDeadlineError,
    ("UNAVAILABLE", "WORKER_LOST"): WorkerLostError,
    ("UNAVAILABLE", "DRAINING"): DrainingError,
    ("UNAVAILABLE", _ANY): UnavailableError,
    ("INTERNAL", "HOOK_FAILED"): HookFailedError,
    ("INTERNAL", "ENVIRONMENT_FAILED"): EnvironmentFailedError,
    ("INTERNAL", _ANY): InternalError,
    ("UNKNOWN", _ANY): InternalError,
}


def error_class(code: str, reason: str) -> type[EnvError]:
    """The exception for a status code and reason, both by name. `EnvError` where no narrower one fits."""
    return _ERRORS.get((code, reason)) or _ERRORS.get((code, _ANY), EnvError)
