"""The messages of a session's stream: requests from bytes, responses to bytes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias

from envtrio.v1 import env_service_pb2 as pb
from envtrio.v1 import errors_pb2
from google.protobuf.message import DecodeError

from env_worker.delta.frames import tag, varint
from env_worker.session_bounds import MAX_MORE, check_bounds, more_in_more, too_many_more
from env_worker.status import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    import grpc

BIG_MESSAGE_BYTES: Final = 256 * 1024
"""Larger messages are parsed in a thread."""

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
"""The handler's context: messages cross it as bytes."""

_MORE: Final = tag(pb.SessionResponse.MORE_FIELD_NUMBER)
_RUN_DATA: Final = tag(pb.SessionResponse.RUN_DATA_FIELD_NUMBER)
_RUN_NUMBER: Final = varint(pb.RunData.RUN_NUMBER_FIELD_NUMBER << 3)
_DATA: Final = tag(pb.RunData.DATA_FIELD_NUMBER)


async def read_message(context: Context) -> pb.SessionRequest | None:
    """The next message; None at the half-close. Refusal if it holds more than it may, or cannot be decoded,
    where gRPC itself would say UNKNOWN."""
    data = await context.read()
    if not isinstance(data, bytes):
        return None
    try:
        return await asyncio.to_thread(_parsed, data) if len(data) > BIG_MESSAGE_BYTES else _parsed(data)
    except DecodeError as error:
        raise invalid(
            f"a message of {len(data)} bytes is no SessionRequest ({error}); check that the client was made "
            "from the same protos"
        ) from error


def frames_of(message: pb.SessionRequest) -> Iterator[pb.SessionRequest]:
    """The message's own frame, then those in its `more`. Refusal where these may not be."""
    more = message.more
    if len(more) > MAX_MORE:
        raise too_many_more(len(more))
    yield message
    for frame in more:
        if frame.more:
            raise more_in_more(len(frame.more))
        yield frame


def _parsed(data: bytes) -> pb.SessionRequest:
    check_bounds(data)
    return pb.SessionRequest.FromString(data)


def run_admitted(number: int) -> bytes:
    """The frame that says that a run was admitted."""
    return pb.SessionResponse(run_admitted=pb.RunAdmitted(run_number=number)).SerializeToString()


def run_ended(number: int, ending: Refusal | None) -> bytes:
    """The frame that says how a run ended; None: OK."""
    end = pb.EndRun(run_number=number)
    if ending is not None:
        end.code = ending.code.value[0]
        end.message = ending.message
        end.status_details = ending.status().SerializeToString()
    return pb.SessionResponse(end_run=end).SerializeToString()


def run_data_prefix(number: int) -> bytes:
    """What `run_data_head` needs of the run."""
    return _RUN_NUMBER + varint(number) + _DATA


def run_data_head(prefix: bytes, size: int) -> bytes:
    """The frame of `size` bytes of a run's data, without these, which follow. Framed by hand: as a message
    they would be copied twice."""
    inner = prefix + varint(size)
    return _RUN_DATA + varint(len(inner) + size) + inner


def more_head(size: int) -> bytes:
    """What makes a frame of `size` bytes one more of a message: it stands before the frame."""
    return _MORE + varint(size)


def invalid(message: str, field: str = "frame") -> Refusal:
    """A frame is malformed or out of order."""
    return Refusal(errors_pb2.ERROR_REASON_INVALID_REQUEST, message, field=field)
