"""What a worker says in a session's stream, message by message."""

from __future__ import annotations

import asyncio
from typing import Final

from envtrio.v1.env_service_pb2 import SessionResponse
from google.protobuf.message import DecodeError

from env_broker.session_bounds import RESPONSE, BoundsError

BIG_BYTES: Final = 1024 * 1024
"""Messages over this are parsed in a thread."""


class UnreadableError(Exception):
    """The worker sent a message that is none, or holds more than it may: the stream cannot be trusted."""


async def parsed(data: bytes) -> SessionResponse:
    """The message. UnreadableError if it cannot be read."""
    return await asyncio.to_thread(_parse, data) if len(data) > BIG_BYTES else _parse(data)


def _parse(data: bytes) -> SessionResponse:
    try:
        RESPONSE.check(data)
        return SessionResponse.FromString(data)
    except (BoundsError, DecodeError) as error:
        raise UnreadableError(
            f"a message of {len(data)} bytes is no SessionResponse to be read ({error})"
        ) from None
