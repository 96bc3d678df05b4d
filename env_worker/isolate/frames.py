"""Messages as length-prefixed frames on a stream socket: pickled, with large arrays beside the pickle.

What comes to the worker has known types only (`pickling`); its job for an environment's process may have any.

A frame is `<buffers: uint32, body: uint64>`, one uint64 for the size of each buffer, the body, the buffers.
Large arrays cross by a write from, and a read into, their own memory.
"""

from __future__ import annotations

import asyncio
import io
import pickle
import struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from env_worker.isolate.pickling import PlainPickler, loads

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from env_worker.isolate.pickling import ReadBuffer

MAX_FRAME_BYTES: Final = 2**30
OUT_OF_BAND_BYTES: Final = 64 * 1024
"""Arrays from this size on cross beside the pickle."""
SOCKET_BYTES: Final = 2**20
"""What is asked of the kernel for the socket's buffers; it may give less."""

_HEAD: Final = struct.Struct("<IQ")
_SIZE: Final = struct.Struct("<Q")
_READ_BYTES: Final = 64 * 1024
_TURN_BYTES: Final = 128 * 1024  # read in one turn of the loop at most, about: others run on it too
_MAX_BUFFERS: Final = 4096

Buffer: TypeAlias = "bytes | memoryview"


class FrameTooLargeError(Exception):
    """A message is beyond what one frame may have."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"a message between the worker and an environment's process has {size} bytes, the limit is "
            f"{limit}; add smaller nodes, or run without --isolate process"
        )


def encode(message: object, max_bytes: int = MAX_FRAME_BYTES, *, plain: bool = False) -> list[Buffer]:
    """The frame of `message`, in pieces to be written one after the other. FrameTooLargeError beyond
    `max_bytes`; what pickle raises, where it cannot be pickled, or not as what the worker knows, if that is
    who reads it (`plain`)."""
    buffers: list[memoryview] = []

    def in_band(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < OUT_OF_BAND_BYTES or len(buffers) == _MAX_BUFFERS:
            return True
        buffers.append(view)
        return False

    pickled = io.BytesIO()
    (PlainPickler if plain else pickle.Pickler)(pickled, 5, buffer_callback=in_band).dump(message)
    body = pickled.getbuffer()
    sizes = [view.nbytes for view in buffers]
    if (total := len(body) + sum(sizes)) > max_bytes:
        raise FrameTooLargeError(total, max_bytes)
    head = _HEAD.pack(len(sizes), len(body)) + b"".join(map(_SIZE.pack, sizes))
    return [head + body, *buffers]


def send_frame(connection: socket.socket, message: object) -> None:
    """Write the frame of `message` to the worker, by a blocking socket. As `encode`, and OSError where it is
    gone."""
    for piece in encode(message, plain=True):
        connection.sendall(piece)


def read_frame(connection: socket.socket) -> Any:
    """The worker's next message, from a blocking socket. EOFError where it is gone."""

    def fill(size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while len(view):
            if not (read := connection.recv_into(view)):
                raise EOFError("the worker closed the connection")
            view = view[read:]
        return data

    count, body_bytes = _HEAD.unpack(fill(_HEAD.size))
    sizes = _sizes(fill(count * _SIZE.size), body_bytes, MAX_FRAME_BYTES)
    body = fill(body_bytes)
    return pickle.loads(body, buffers=_read_only(fill(size) for size in sizes))


class FrameReader:
    """Reads an environment's frames from a non-blocking socket on an event loop, in pieces: a large frame
    holds up nobody."""

    def __init__(self, connection: socket.socket, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._connection: Final = connection
        self._max_bytes: Final = max_bytes
        self._buffer: Final = memoryview(bytearray(_READ_BYTES))
        self._start = self._end = 0
        self._turn_bytes = 0

    async def next(self) -> Any:
        """The next message. EOFError at the stream's end, FrameTooLargeError in front of a frame that is too
        large, UnpicklingError for one that holds what no episode does."""
        count, body_bytes = _HEAD.unpack(await self._bytes(_HEAD.size))
        if count > _MAX_BUFFERS:
            raise ValueError(
                f"a frame has {count} buffers, the limit is {_MAX_BUFFERS}: it is no frame of ours"
            )
        sizes = _sizes(await self._bytes(count * _SIZE.size), body_bytes, self._max_bytes)
        body = await self._bytes(body_bytes)
        return loads(body, _read_only([await self._bytes(size) for size in sizes]))

    async def _bytes(self, size: int) -> memoryview:
        # From numpy, which does not write zeros to what is written right away.
        view = np.empty(size, np.uint8).data
        filled = 0
        while filled < size:
            if self._start == self._end and size - filled >= _READ_BYTES:
                filled += await self._receive(view[filled:])
                continue
            if self._start == self._end:
                self._start, self._end = 0, await self._receive(self._buffer)
            piece = min(size - filled, self._end - self._start)
            view[filled : filled + piece] = self._buffer[self._start : self._start + piece]
            self._start += piece
            filled += piece
        return view

    async def _receive(self, view: memoryview) -> int:
        if self._turn_bytes >= _TURN_BYTES:
            self._turn_bytes = 0
            await asyncio.sleep(0)
        try:
            # A connection with something to read returns without a turn of the loop.
            read = await asyncio.get_running_loop().sock_recv_into(self._connection, view)
        except ConnectionError as error:
            raise EOFError(f"the environment's process broke the connection: {error}") from error
        if not read:
            raise EOFError("the environment's process closed the connection")
        self._turn_bytes += read
        return read


def _sizes(packed: bytearray | memoryview, body_bytes: int, max_bytes: int) -> list[int]:
    sizes = [size for (size,) in _SIZE.iter_unpack(packed)]
    if (total := body_bytes + sum(sizes)) > max_bytes:
        raise FrameTooLargeError(total, max_bytes)
    return sizes


def _read_only(buffers: Iterable[ReadBuffer]) -> list[memoryview]:
    return [memoryview(buffer).toreadonly() for buffer in buffers]
