"""A RunRequest on its way through the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from envtrio.v1.env_service_pb2 import RunRequest


class HeldRequest:
    """What decides where a run goes, and the request's bytes until a worker has them.

    Args:
        request: decoded; not kept, as a task may have megabytes.
        data: its bytes, as they came.
    """

    def __init__(self, request: RunRequest, data: bytes) -> None:
        self.request_id: Final[str] = request.request_id
        self.session_id: Final[str] = request.session_id
        self.environment: Final[str] = request.environment
        self.priority: Final[int] = request.priority
        self.data = data
        """Empty once they were dropped."""

    def drop(self) -> None:
        """The run goes nowhere else: let go of the bytes."""
        self.data = b""
