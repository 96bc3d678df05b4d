"""The body of a fetch, written to a caller as fast as it reads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from envtrio.v1 import errors_pb2

from env_worker.status import Refusal

if TYPE_CHECKING:
    import grpc

    from env_worker.arrays.pieces import Pieces

FETCH_STALL_SECONDS: Final = 60.0
"""A caller that takes nothing for so long has left its fetch."""
_PIECE_TAG: Final = b"\x12"
"""Of FetchResponse.piece: field 2, with a length."""


def framed(piece: bytes) -> bytes:
    """`FetchResponse(piece=piece)` as bytes, with one copy where protobuf takes three."""
    length, varint = len(piece), bytearray()
    while length > 0x7F:
        varint.append(length & 0x7F | 0x80)
        length >>= 7
    varint.append(length)
    return b"".join((_PIECE_TAG, varint, piece))


class Outflow:
    """Writes messages of one call. A piece is read while the last one is being written: the stream is twice
    as fast so.

    Args:
        stall_seconds: how long the caller may take nothing.
    """

    def __init__(
        self, context: grpc.aio.ServicerContext[bytes, bytes], stall_seconds: float = FETCH_STALL_SECONDS
    ) -> None:
        self._context: Final = context
        self._stall_seconds: Final = stall_seconds
        self.sent_bytes = 0
        """Bytes of pieces that gRPC has taken."""

    async def send(self, first: bytes, pieces: Pieces | None) -> None:
        """The message `first`, then all pieces.

        Refusal if the caller takes nothing for too long, or the call is broken; OSError if a piece cannot be
        read.
        """
        message: bytes | None = first
        size = 0
        while message is not None:
            writing = asyncio.ensure_future(self._context.write(message))
            writing.add_done_callback(_heard)
            try:
                await asyncio.sleep(0)  # it begins; and all others on this loop have their turn
                message, following = await _next_message(pieces)
                await self._written(writing)
            finally:
                writing.cancel()
            self.sent_bytes += size
            size = following

    async def _written(self, writing: asyncio.Future[None]) -> None:
        done, _ = await asyncio.wait((writing,), timeout=self._stall_seconds)
        if not done:
            raise Refusal(
                errors_pb2.ERROR_REASON_DEADLINE,
                f"the caller read nothing for {self._stall_seconds:g} s, after {self.sent_bytes} bytes; "
                "fetch again, and read as it comes",
                limit=f"{self._stall_seconds:g}",
            )
        # By whatever exception it broke: gRPC has several for one cause.
        if writing.cancelled() or writing.exception() is not None:
            raise Refusal(
                errors_pb2.ERROR_REASON_CALLER_LOST,
                f"the call broke after {self.sent_bytes} bytes of the body; fetch again",
            )


async def _next_message(pieces: Pieces | None) -> tuple[bytes | None, int]:
    """The next piece as a message, and its size; (None, 0) at the end."""
    piece = None if pieces is None else await pieces.next()
    return (None, 0) if piece is None else (framed(piece), len(piece))


def _heard(writing: asyncio.Future[None]) -> None:
    if not writing.cancelled():
        writing.exception()  # else asyncio would log that nobody asked
