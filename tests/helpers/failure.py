"""How a call failed, with what the rich details of its status say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from google.rpc import error_details_pb2

from tests.helpers.stub_client import _detail, _status

if TYPE_CHECKING:
    from collections.abc import Mapping

    import grpc.aio


@dataclass(frozen=True, slots=True)
class Failure:
    """A status other than OK. `reason` and `metadata` are those of the ErrorInfo, empty without one."""

    code: str
    reason: str
    message: str = field(compare=False)
    metadata: Mapping[str, str] = field(compare=False)
    retry_seconds: float | None = field(compare=False)

    @property
    def kind(self) -> tuple[str, str]:
        """Code and reason."""
        return self.code, self.reason


def failure_of(error: grpc.aio.AioRpcError) -> Failure:
    """What `error` says."""
    status = _status(error.trailing_metadata())
    info = _detail(status, error_details_pb2.ErrorInfo())
    retry = _detail(status, error_details_pb2.RetryInfo())
    return Failure(
        code=error.code().name,
        reason=info.reason,
        message=error.details() or "",
        metadata=dict(info.metadata),
        retry_seconds=retry.retry_delay.ToTimedelta().total_seconds() if retry.ByteSize() else None,
    )
