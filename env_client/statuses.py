"""From a gRPC status to an exception of `errors`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from env_client.errors import EnvError, error_class, shown_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

_DOMAIN: Final = "envtrio"
_DETAILS_KEY: Final = "grpc-status-details-bin"
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


def rpc_error(code: int, message: str, details: bytes = b"") -> grpc.aio.AioRpcError:
    """What gRPC would raise for a call of this status.

    Args:
        code: number of a gRPC status code; what is none counts as UNKNOWN.
        message: the status message.
        details: a serialized google.rpc.Status; empty: none.
    """
    trailing = grpc.aio.Metadata((_DETAILS_KEY, details)) if details else grpc.aio.Metadata()
    known = _CODES.get(code, grpc.StatusCode.UNKNOWN)
    return grpc.aio.AioRpcError(known, grpc.aio.Metadata(), trailing, message)


def env_error(error: grpc.RpcError, request_id: str = "") -> EnvError:
    """The exception for a call that ended with a status other than OK.

    Its `reason` is empty exactly where the status carries no ErrorInfo of ours: then gRPC itself made it, and
    nobody can say what became of the run.

    Args:
        error: what grpc or grpc.aio raised; both have `code()`, `details()` and `trailing_metadata()`.
        request_id: the run, where the call was about one.
    """
    code = error.code().name
    reason, metadata, retry_after = "", {}, None
    for detail in _details(error.trailing_metadata() or ()):
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo.FromString(detail.value)
            if info.domain == _DOMAIN:
                reason, metadata = info.reason, dict(info.metadata)
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
            retry_after = delay.seconds + delay.nanos / 1e9
    run = f"run {shown_id(request_id)}: " if request_id else ""
    silent = "no word of it from the server" if request_id else "no word from the server"
    label = f"{code} {reason}" if reason else f"{code} ({silent})"
    return error_class(code, reason)(
        f"{run}{label}: {error.details() or 'no details'}",
        code=code,
        reason=reason,
        request_id=request_id,
        metadata=metadata,
        retry_after=retry_after,
    )


def status_details(error: grpc.RpcError) -> bytes:
    """The serialized google.rpc.Status of a call that ended so; empty where there is none."""
    trailing: Iterable[Any] = error.trailing_metadata() or ()
    details: bytes = next((value for key, value in trailing if key == _DETAILS_KEY), b"")
    return details


def made_details(reason: str) -> bytes:
    """A serialized google.rpc.Status that has this reason: for what the client says in a server's place."""
    status = status_pb2.Status()
    status.details.add().Pack(error_details_pb2.ErrorInfo(domain=_DOMAIN, reason=reason))
    data: bytes = status.SerializeToString()
    return data


async def translated(call: Awaitable[Any], request_id: str = "") -> Any:
    """What the call answers.

    Raises:
        EnvError: as `env_error` says.
    """
    try:
        return await call
    except grpc.RpcError as error:
        raise env_error(error, request_id) from error


def _details(trailing: Iterable[Any]) -> list[Any]:
    for key, value in trailing:
        if key == _DETAILS_KEY:
            try:
                return list(status_pb2.Status.FromString(value).details)
            except DecodeError:
                break  # As good as none: the code and the details' text still tell.
    return []
