"""Every status that is not OK: why, with which gRPC code, and in which words.

One table maps a reason to its code; nothing else in the broker spells either.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from grpc.aio import ServicerContext

DOMAIN: Final = "envtrio"
DETAILS_KEY: Final = "grpc-status-details-bin"

_CODES: Final[Mapping[str, grpc.StatusCode]] = {
    "INVALID_REQUEST": grpc.StatusCode.INVALID_ARGUMENT,
    "INVALID_REQUEST_ID": grpc.StatusCode.INVALID_ARGUMENT,
    "PROTOCOL_GENERATION": grpc.StatusCode.FAILED_PRECONDITION,
    "ENVIRONMENT_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "DUPLICATE_REQUEST_ID": grpc.StatusCode.ALREADY_EXISTS,
    "MESSAGE_TOO_LARGE": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "QUEUE_FULL": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "TABLE_FULL": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "ARRAY_BUDGET": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "CANCEL_REQUESTED": grpc.StatusCode.CANCELLED,
    "CALLER_LOST": grpc.StatusCode.CANCELLED,
    "DEADLINE": grpc.StatusCode.DEADLINE_EXCEEDED,
    "WORKER_LOST": grpc.StatusCode.UNAVAILABLE,
    "DRAINING": grpc.StatusCode.UNAVAILABLE,
    "NO_WORKER_READY": grpc.StatusCode.UNAVAILABLE,
    "NOT_ADMITTED": grpc.StatusCode.UNAVAILABLE,
    "WORKER_SILENT": grpc.StatusCode.UNAVAILABLE,
    "INTERNAL": grpc.StatusCode.INTERNAL,
    "SESSION_LOST": grpc.StatusCode.CANCELLED,
    "SESSION_SUPERSEDED": grpc.StatusCode.ABORTED,
    "LEASE_EXPIRED": grpc.StatusCode.ABORTED,
    "NOT_OFFERED": grpc.StatusCode.UNIMPLEMENTED,
}

BEFORE_ADMISSION: Final = frozenset({"NOT_ADMITTED", "QUEUE_FULL", "ARRAY_BUDGET", "DRAINING"})
"""Reasons with which a worker refuses a run that then had no effect: another worker may have it."""

_MAX_MESSAGE_BYTES: Final = 1500
"""Trailers of more than 8 KiB may be refused on the way, and the message is in them twice."""
_MAX_VALUE_BYTES: Final = 200

_ID: Final = re.compile(r"([0-9a-f]{8})(?:-?[0-9a-f]){24,}", re.IGNORECASE)
"""A request_id, also as a UUID is written, and whatever may contain one."""


class Refusal(Exception):
    """A call that ends with a status that is not OK.

    Args:
        reason: an ErrorReason without its prefix; decides the code.
        message: names the value, the limit and the next step.
        detail: what else the caller should read, and what the log need not repeat for each run.
        retry_after: seconds after which another try makes sense; becomes google.rpc.RetryInfo.
        metadata: what the message says, for programs.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        detail: str = "",
        retry_after: float | None = None,
        **metadata: object,
    ) -> None:
        super().__init__(message)
        self.reason: Final = reason
        self.code: Final = _CODES[reason]
        self.brief: Final = cut(message, _MAX_MESSAGE_BYTES)
        self.message: Final = cut(f"{message} ({detail})" if detail else message, _MAX_MESSAGE_BYTES)
        self.retry_after: Final = retry_after
        self.metadata: Final = {key: cut(str(value), _MAX_VALUE_BYTES) for key, value in metadata.items()}

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        """The google.rpc.Status of this refusal, as trailing metadata."""
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        info = error_details_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=self.metadata)
        status.details.add().Pack(info)
        if self.retry_after is not None:
            delay = Duration()
            delay.FromNanoseconds(int(self.retry_after * 1e9))
            status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
        return ((DETAILS_KEY, status.SerializeToString()),)

    async def abort(self, context: ServicerContext[Any, Any]) -> NoReturn:
        """End the call with this status. Never returns normally."""
        await context.abort(self.code, self.message, self.trailing_metadata())


def error_reason(trailing_metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The reason of a peer's status; None where the status was made by gRPC itself, or is not ours."""
    for key, value in trailing_metadata:
        if key != DETAILS_KEY or not isinstance(value, bytes):
            continue
        try:
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Is(info.DESCRIPTOR) and detail.Unpack(info) and info.domain == DOMAIN:
                    return str(info.reason)
        except DecodeError:
            return None
    return None


def short(request_id: str) -> str:
    """As much of a request_id as may be shown: it is a capability."""
    return request_id[:8]


def masked(text: str) -> str:
    """Text of others with no more of any id in it than may be shown. Before it is cut: half an id is one."""
    return _ID.sub(r"\1", text)


def cut(text: str, limit: int) -> str:
    """The beginning of a text: at most so many bytes."""
    data = text.encode(errors="replace")
    return data[:limit].decode(errors="ignore")
