"""What a client says in a session's stream, frame by frame."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from envtrio.v1.env_service_pb2 import SessionRequest
from google.protobuf.message import DecodeError

from env_broker.channel_options import MEBIBYTE
from env_broker.held_request import HeldRequest
from env_broker.hello import check_generation
from env_broker.session_bounds import MAX_MORE, REQUEST, BoundsError
from env_broker.status import Refusal

if TYPE_CHECKING:
    from envtrio.v1.env_service_pb2 import OpenRun, RunRequest
    from grpc.aio import ServicerContext

BIG_MESSAGE_BYTES: Final = 1024 * 1024
"""Larger messages are parsed in a thread."""
MAX_REQUEST_BYTES: Final = MEBIBYTE
"""Most bytes of a RunRequest in a session."""


@dataclass(frozen=True, slots=True)
class Opening:
    """An `open_run`, which keeps nothing of the message that it came in."""

    number: int
    request: HeldRequest | Refusal
    """Refusal where the run, and nothing but the run, ends with it."""
    timeout: float | None
    """Seconds until its deadline; None: it has none."""
    credit: int


Frame: TypeAlias = "SessionRequest | Opening"


async def read(context: ServicerContext[bytes, bytes]) -> list[Frame] | None:
    """The next message's frames, at least one; None at the end. Refusal as `unfolded`."""
    data: Any = await context.read()
    if not isinstance(data, bytes):
        return None
    if len(data) > BIG_MESSAGE_BYTES:
        return await asyncio.to_thread(unfolded, data)
    return unfolded(data)


def unfolded(data: bytes) -> list[Frame]:
    """A message's frames: its first, and those in its `more`. Refusal (INVALID_REQUEST): it is malformed, or
    holds too much, which is seen before it is parsed."""
    try:
        REQUEST.check(data)
        first = SessionRequest.FromString(data)
    except BoundsError as error:
        raise invalid(str(error), error.field, **error.counts) from None
    except DecodeError as error:
        raise invalid(f"a frame cannot be decoded ({error}); use the stubs of envtrio.v1", "frame") from None
    if len(first.more) > MAX_MORE:
        raise invalid(
            f"more has {len(first.more)} frames, the limit is {MAX_MORE}; send more messages",
            "more",
            value=len(first.more),
            limit=MAX_MORE,
        )
    for frame in first.more:
        if frame.more:
            raise invalid(f"more has a frame with {len(frame.more)} more; put them side by side", "more.more")
        if frame.HasField("open"):
            raise invalid("more has an open; send it first, by itself or with more behind it", "more.open")
    return [
        _opening(frame.open_run) if frame.HasField("open_run") else frame for frame in (first, *first.more)
    ]


def invalid(message: str, field: str | None, **metadata: Any) -> Refusal:
    """The Refusal that ends a stream whose client breaks the contract."""
    return Refusal("INVALID_REQUEST", message, field=field or "frame", **metadata)


def _opening(frame: OpenRun) -> Opening:
    return Opening(
        number=frame.run_number,
        request=_held(frame.request),
        timeout=frame.timeout_millis / 1000 if frame.HasField("timeout_millis") else None,
        credit=frame.credit_bytes,
    )


def _held(request: RunRequest) -> HeldRequest | Refusal:
    data = request.SerializeToString()
    if len(data) > MAX_REQUEST_BYTES:
        return Refusal(
            "MESSAGE_TOO_LARGE",
            f"RunRequest has {len(data)} bytes, the limit in a session is {MAX_REQUEST_BYTES}; send it by "
            "Run, or make task_json smaller",
            field="task_json",
            value=len(data),
            limit=MAX_REQUEST_BYTES,
        )
    try:
        check_generation(request.protocol_generation)
    except Refusal as refusal:
        return refusal
    return HeldRequest(request, data)
