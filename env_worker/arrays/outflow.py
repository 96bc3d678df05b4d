"""The body of a fetch, written to a caller as fast as it reads, and beside many others."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final, NamedTuple

from envtrio.v1 import errors_pb2

from env_worker.status import Refusal

if TYPE_CHECKING:
    import grpc

    from env_worker.arrays.pieces import Pieces
    from env_worker.arrays.places import Place

FETCH_STALL_SECONDS: Final = 60.0
"""A caller that takes nothing for so long has left its fetch."""
TURN_SECONDS: Final = 0.005
"""A caller that takes a piece within it (1 ms is usual) has its turn for so long."""
BRISK_SECONDS: Final = 0.02
"""For a caller that takes a piece within it the next one is read ahead."""
RETRY_SECONDS: Final = 1.0
"""When a caller that was sent away should come again."""
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


class StalledError(Refusal):
    """The caller takes nothing. gRPC keeps what it was sent until it does, or is gone."""


class _Message(NamedTuple):
    data: bytes
    """None of it: the body is at its end."""
    size: int
    """Bytes of the body in it."""


class Outflow:
    """Writes messages of one call, each in a turn of its own.

    While a brisk caller takes one piece, the next is read: the stream is twice as fast so. A fast one keeps
    its turn until it has taken the piece, others leave it when the piece is on its way: so a slow caller
    costs nobody a turn. Nothing is read ahead for it either: of a caller that does not read there is one
    piece in memory, ours and gRPC's copy (2 MiB), and a third MiB where a brisk one stops.

    Args:
        turns: whoever has one may read and write. As each lasts a turn of the event loop or longer, and they
            are given in order, they bound how long anything else on the loop waits, however many fetches
            there are.
        place: may be taken away while the caller takes nothing.
        stall_seconds: how long the caller may take nothing at the most.
    """

    def __init__(
        self,
        context: grpc.aio.ServicerContext[bytes, bytes],
        turns: asyncio.Semaphore,
        place: Place,
        stall_seconds: float = FETCH_STALL_SECONDS,
    ) -> None:
        self._context: Final = context
        self._turns: Final = turns
        self._place: Final = place
        self._stall_seconds: Final = stall_seconds
        self._taken_in = math.inf
        """Seconds in which the caller took the last piece. Before the first one nobody knows."""
        self.sent_bytes = 0
        """Bytes of pieces that gRPC has taken."""

    async def send(self, first: bytes, pieces: Pieces | None) -> None:
        """The message `first`, then all pieces.

        StalledError if the caller takes nothing for too long, or until its place is taken away; Refusal if
        the call is broken; OSError if a piece cannot be read.
        """
        ready: _Message | None = _Message(first, 0)
        writing: asyncio.Future[None] | None = None
        clock = asyncio.get_running_loop().time
        try:
            while True:
                async with self._turns:
                    data, size = ready or await _next_message(pieces)
                    if not data:
                        return
                    writing = asyncio.ensure_future(self._context.write(data))
                    writing.add_done_callback(_heard)
                    del data  # only the call has it now
                    self._place.stalled_since = begun = clock()
                    await asyncio.sleep(0)  # it begins; and all others on this loop have their turn
                    ready = None
                    if self._taken_in <= BRISK_SECONDS:
                        self._place.stalled_since = None  # what a disk takes is not the caller's fault
                        ready = await _next_message(pieces)
                        self._place.stalled_since = None if writing.done() else begun
                    if self._taken_in <= TURN_SECONDS:
                        await asyncio.wait((writing,), timeout=TURN_SECONDS)
                await self._written(writing)
                self._place.stalled_since = None
                if size:
                    self._taken_in = clock() - begun
                    self.sent_bytes += size
        finally:
            if writing is not None:
                writing.cancel()

    async def _written(self, writing: asyncio.Future[None]) -> None:
        if not writing.done():
            awaited = (writing, self._place.taken_away)
            await asyncio.wait(awaited, timeout=self._stall_seconds, return_when=asyncio.FIRST_COMPLETED)
        if not writing.done():
            raise self._stalled()
        # By whatever exception it broke: gRPC has several for one cause.
        if writing.cancelled() or writing.exception() is not None:
            raise Refusal(
                errors_pb2.ERROR_REASON_CALLER_LOST,
                f"the call broke after {self.sent_bytes} bytes of the body; fetch again",
            )

    def _stalled(self) -> StalledError:
        if self._place.taken_away.done():
            return StalledError(
                errors_pb2.ERROR_REASON_QUEUE_FULL,
                f"other fetches wait, and the caller of this one read nothing for a while, after "
                f"{self.sent_bytes} bytes; fetch again in {RETRY_SECONDS:g} s, and read as it comes",
                retry_seconds=RETRY_SECONDS,
            )
        return StalledError(
            errors_pb2.ERROR_REASON_DEADLINE,
            f"the caller read nothing for {self._stall_seconds:g} s, after {self.sent_bytes} bytes; "
            "fetch again, and read as it comes",
            limit=f"{self._stall_seconds:g}",
        )


async def _next_message(pieces: Pieces | None) -> _Message:
    piece = None if pieces is None else await pieces.next()
    return _Message(b"", 0) if piece is None else _Message(framed(piece), len(piece))


def _heard(writing: asyncio.Future[None]) -> None:
    if not writing.cancelled():
        writing.exception()  # else asyncio would log that nobody asked
