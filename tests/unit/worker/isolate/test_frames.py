"""Frames: what goes in comes out, within their limit, and a large one holds up nobody."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from env_worker.isolate.frames import FrameReader, FrameTooLargeError, encode, read_frame, send_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

Sockets = tuple[socket.socket, socket.socket]


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    """One to write, blocking; one to read, non-blocking."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        yield ours, theirs


def messages() -> list[Any]:
    large = np.arange(3_000_000, dtype=np.int32)
    return [
        "small", np.empty((0, 2, 2), np.uint8), {"a": np.arange(5)}, [large, large[:100_000]],
        large[::2], np.asfortranarray(np.arange(200_000).reshape(2, -1)), "x" * 300_000, None,
    ]  # fmt: skip


def same(found: Any, sent: Any) -> None:
    if isinstance(sent, np.ndarray):
        assert (found.dtype, found.shape) == (sent.dtype, sent.shape)
        assert np.array_equal(found, sent)
    elif isinstance(sent, (list, dict)):
        items = (
            zip(found, sent, strict=True) if isinstance(sent, list) else ((found[k], sent[k]) for k in sent)
        )
        for one, other in items:
            same(one, other)
    else:
        assert found == sent


async def test_messages_of_any_size_cross_in_order(sockets: Sockets) -> None:
    sent = messages()

    def write() -> None:
        for message in sent:
            send_frame(sockets[0], message)
        sockets[0].shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=write)
    thread.start()
    reader = FrameReader(sockets[1])
    for message in sent:
        same(await reader.next(), message)
    with pytest.raises(EOFError):
        await reader.next()
    thread.join()


def test_the_blocking_reader_reads_the_same(sockets: Sockets) -> None:
    sockets[1].setblocking(True)
    sent = messages()
    thread = threading.Thread(target=lambda: [send_frame(sockets[0], message) for message in sent])
    thread.start()
    for message in sent:
        same(read_frame(sockets[1]), message)
    thread.join()
    sockets[0].close()
    with pytest.raises(EOFError):
        read_frame(sockets[1])


async def test_a_large_frame_leaves_the_loop_to_others(sockets: Sockets) -> None:
    thread = threading.Thread(target=send_frame, args=(sockets[0], np.zeros(64 * 2**20, np.uint8)))
    reading = asyncio.create_task(FrameReader(sockets[1]).next())
    thread.start()
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    thread.join()
    assert turns > 100


def test_what_is_too_large_is_not_sent() -> None:
    with pytest.raises(FrameTooLargeError, match=r"has \d+ bytes, the limit is 1000; add smaller nodes"):
        encode(np.zeros(1001, np.uint8), max_bytes=1000)


async def test_what_is_too_large_is_not_read(sockets: Sockets) -> None:
    sockets[0].sendall(struct.pack("<IQQ", 1, 10, 2**62))
    with pytest.raises(FrameTooLargeError, match="the limit is"):
        await FrameReader(sockets[1]).next()


async def test_what_is_no_frame_is_refused(sockets: Sockets) -> None:
    sockets[0].sendall(b"\xff" * 64)
    with pytest.raises(ValueError, match="4294967295 buffers"):
        await FrameReader(sockets[1]).next()
    sockets[0].sendall(b"")


async def test_an_end_in_the_midst_of_a_frame_is_an_end(sockets: Sockets) -> None:
    head = encode("a message")[0]
    sockets[0].sendall(bytes(head[:-1]))
    sockets[0].close()
    with pytest.raises(EOFError):
        await FrameReader(sockets[1]).next()


def test_small_arrays_cross_within_the_pickle() -> None:
    assert len(encode([np.zeros(10), np.zeros(20)])) == 1
    assert len(encode([np.zeros(10_000), np.zeros(20_000)])) == 3
    assert pickle.loads(bytes(encode("x")[0][12:])) == "x"
