"""How a failure is said: one table from reason to gRPC status, and the status' rich details."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc
from envtrio.v1 import errors_pb2
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envtrio.v1.errors_pb2 import ErrorReason

ERROR_DOMAIN: Final = "envtrio"
DETAILS_KEY: Final = "grpc-status-details-bin"
_REASON_PREFIX: Final = "ERROR_REASON_"
# Trailers of more than 8 KiB may be refused on the way; the message is in them twice, and may be
# percent-encoded.
_MAX_MESSAGE: Final = 800
_MAX_VALUE: Final = 200

CODES: Final[Mapping[ErrorReason.ValueType, grpc.StatusCode]] = {
    errors_pb2.ERROR_REASON_INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    errors_pb2.ERROR_REASON_INVALID_REQUEST_ID: grpc.StatusCode.INVALID_ARGUMENT,
    errors_pb2.ERROR_REASON_INVALID_TASK: grpc.StatusCode.INVALID_ARGUMENT,
    errors_pb2.ERROR_REASON_ENDPOINT_NOT_ALLOWED: grpc.StatusCode.INVALID_ARGUMENT,
    errors_pb2.ERROR_REASON_PROTOCOL_GENERATION: grpc.StatusCode.FAILED_PRECONDITION,
    errors_pb2.ERROR_REASON_ENVIRONMENT_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    errors_pb2.ERROR_REASON_DUPLICATE_REQUEST_ID: grpc.StatusCode.ALREADY_EXISTS,
    errors_pb2.ERROR_REASON_MESSAGE_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors_pb2.ERROR_REASON_QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors_pb2.ERROR_REASON_TABLE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors_pb2.ERROR_REASON_ARRAY_BUDGET: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors_pb2.ERROR_REASON_CANCEL_REQUESTED: grpc.StatusCode.CANCELLED,
    errors_pb2.ERROR_REASON_CALLER_LOST: grpc.StatusCode.CANCELLED,
    errors_pb2.ERROR_REASON_SESSION_LOST: grpc.StatusCode.CANCELLED,
    errors_pb2.ERROR_REASON_DEADLINE: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors_pb2.ERROR_REASON_WORKER_LOST: grpc.StatusCode.UNAVAILABLE,
    errors_pb2.ERROR_REASON_DRAINING: grpc.StatusCode.UNAVAILABLE,
    errors_pb2.ERROR_REASON_NOT_ADMITTED: grpc.StatusCode.UNAVAILABLE,
    errors_pb2.ERROR_REASON_HOOK_FAILED: grpc.StatusCode.INTERNAL,
    errors_pb2.ERROR_REASON_ENVIRONMENT_FAILED: grpc.StatusCode.INTERNAL,
    errors_pb2.ERROR_REASON_INTERNAL: grpc.StatusCode.INTERNAL,
    errors_pb2.ERROR_REASON_SESSION_SUPERSEDED: grpc.StatusCode.ABORTED,
    errors_pb2.ERROR_REASON_ARRAYS_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    errors_pb2.ERROR_REASON_ARRAYS_LOST: grpc.StatusCode.NOT_FOUND,
    errors_pb2.ERROR_REASON_ARRAYS_INCOMPLETE: grpc.StatusCode.FAILED_PRECONDITION,
    errors_pb2.ERROR_REASON_TOKEN_RANGE: grpc.StatusCode.OUT_OF_RANGE,
    errors_pb2.ERROR_REASON_NOT_OFFERED: grpc.StatusCode.UNIMPLEMENTED,
}
"""Every reason that a worker gives, with the one status it comes with."""


class Refusal(Exception):
    """A call that is not carried out: reason, message, and what the message says as metadata for programs.

    Args:
        reason: an `ErrorReason`; it decides the status code.
        message: for people: the value, the limit and the next step. Of a request_id only the first 8 digits.
        retry_seconds: when to try again; sent as RetryInfo.
        metadata: ErrorInfo's metadata, e.g. `field`, `value`, `limit`.
    """

    def __init__(
        self,
        reason: ErrorReason.ValueType,
        message: str,
        *,
        retry_seconds: float | None = None,
        **metadata: object,
    ) -> None:
        super().__init__(message)
        self.reason: Final = reason
        self.code: Final = CODES[reason]
        self.message: Final = _cut(message, _MAX_MESSAGE)
        self.retry_seconds: Final = retry_seconds
        self.metadata: Final = {name: _cut(str(value), _MAX_VALUE) for name, value in metadata.items()}

    @property
    def reason_name(self) -> str:
        """The reason as it stands in ErrorInfo, e.g. `QUEUE_FULL`."""
        return errors_pb2.ErrorReason.Name(self.reason).removeprefix(_REASON_PREFIX)

    def status(self) -> Status:
        """The google.rpc.Status with ErrorInfo, and RetryInfo where there is a delay."""
        status = Status(code=self.code.value[0], message=self.message)
        info = ErrorInfo(reason=self.reason_name, domain=ERROR_DOMAIN, metadata=self.metadata)
        status.details.append(_packed(info))
        if self.retry_seconds is not None:
            delay = Duration()
            delay.FromNanoseconds(round(self.retry_seconds * 1e9))
            status.details.append(_packed(RetryInfo(retry_delay=delay)))
        return status

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        """What to abort a call with, beside code and message."""
        return ((DETAILS_KEY, self.status().SerializeToString()),)


def _cut(text: str, limit: int) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit} characters more)"


def _packed(message: ErrorInfo | RetryInfo) -> Any:
    packed = Any()
    packed.Pack(message)
    return packed
