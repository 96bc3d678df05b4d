"""How a scripted server ends a call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

if TYPE_CHECKING:
    from collections.abc import Mapping

    import grpc


@dataclass(frozen=True)
class End:
    """End with a status. Without a reason it looks as if gRPC had made it."""

    code: grpc.StatusCode
    reason: str = ""
    message: str = "scripted"
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_seconds: int = 0
    domain: str = "envtrio"

    def abort(self, context: grpc.ServicerContext) -> None:
        """End the call so."""
        if not self.reason:
            context.abort(self.code, self.message)
        details = [
            error_details_pb2.ErrorInfo(domain=self.domain, reason=self.reason, metadata=dict(self.metadata))
        ]
        if self.retry_seconds:
            delay = error_details_pb2.RetryInfo()
            delay.retry_delay.seconds = self.retry_seconds
            details.append(delay)
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        for detail in details:
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        context.abort_with_status(rpc_status.to_status(status))
