"""What became of a run at its worker, where the worker itself does not say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import grpc.aio

from env_broker.channel_options import MAX_MESSAGE_BYTES
from env_broker.status import Refusal, short

if TYPE_CHECKING:
    from env_broker.link import WorkerLink

_SIZES: Final = re.compile(r"\((\d+) vs\. (\d+)\)")


def translated(error: grpc.aio.AioRpcError, link: WorkerLink, request_id: str) -> Refusal | None:
    """A status that gRPC made, in the contract's words. None where the connection broke."""
    code, details = error.code(), error.details() or ""
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return None
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        sizes = _SIZES.search(details)
        value = sizes[1] if sizes else "an unknown number of"
        return Refusal(
            "MESSAGE_TOO_LARGE",
            f"a message of run {short(request_id)} from worker {link.name} has {value} bytes, the limit "
            f"of DeltaStream is {MAX_MESSAGE_BYTES}; make the environment's nodes smaller",
            field="DeltaStream",
            value=value,
            limit=MAX_MESSAGE_BYTES,
            request_id=short(request_id),
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Refusal(
            "DEADLINE",
            f"run {short(request_id)} reached its deadline; allow it more time",
            request_id=short(request_id),
        )
    return Refusal(
        "INTERNAL",
        f"worker {link.name} ended run {short(request_id)} with {code.name} ({details[:500]}) and no "
        "reason; read the worker's log",
        worker=link.name,
        request_id=short(request_id),
    )


def lost(link: WorkerLink, request_id: str, what: str, detail: str = "") -> Refusal:
    """The worker was lost with the run: `what` happened to it, and for people in `detail` how it ended."""
    return Refusal(
        "WORKER_LOST",
        f"worker {link.name} {what} while it had run {short(request_id)}, which may have had effects; "
        "send it again under a new request_id if that does no harm",
        detail=detail,
        worker=link.name,
        request_id=short(request_id),
    )
