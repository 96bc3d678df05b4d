"""Frames of a SessionRequest as bytes, so that a run's request goes on as it came, never encoded again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from envtrio.v1.env_service_pb2 import LeaveRun, OpenRun, RunCredit, SessionRequest

from env_broker.framing import tag, varint

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_FRAMES: Final = 1_024
"""Most frames of one message."""
MESSAGE_BYTES: Final = 256 * 1024
"""About how many bytes one message has; a frame that is larger goes alone."""

_OPEN_RUN: Final = tag(SessionRequest.OPEN_RUN_FIELD_NUMBER)
_MORE: Final = tag(SessionRequest.MORE_FIELD_NUMBER)
_REQUEST: Final = tag(OpenRun.REQUEST_FIELD_NUMBER)


def open_run(number: int, request: bytes, *, credit: int, timeout_millis: int | None) -> bytes:
    """Start that run with a serialized RunRequest; absent: it has no deadline."""
    head = OpenRun(run_number=number, credit_bytes=credit, timeout_millis=timeout_millis).SerializeToString()
    body = b"".join((head, _REQUEST, varint(len(request)), request))
    return b"".join((_OPEN_RUN, varint(len(body)), body))


def run_credit(number: int, credit: int) -> bytes:
    """The worker may send so many bytes more of that run."""
    frame = SessionRequest(run_credit=RunCredit(run_number=number, credit_bytes=credit))
    return frame.SerializeToString()


def leave_run(number: int) -> bytes:
    """Nobody wants that run any more."""
    return SessionRequest(leave_run=LeaveRun(run_number=number)).SerializeToString()


def joined(frames: Sequence[bytes]) -> bytes:
    """One SessionRequest with these frames, at least one."""
    if len(frames) == 1:
        return frames[0]
    parts = [frames[0]]
    for frame in frames[1:]:
        parts += (_MORE, varint(len(frame)), frame)
    return b"".join(parts)
