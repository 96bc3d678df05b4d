"""One reader of one large reference, as a process: how fast it gets the bytes, by every way there is.

    python -m benchmarks.array_reader TCP_PORT ROUNDS  <  REFERENCE_JSON

In each round: a raw TCP socket that sends as many bytes; the stream, read by the synchronous and by the
asynchronous client; the worker's memory, mapped and read once to its end; `numpy.copy` of the same array.
Prints the seconds of each as one JSON object. Whether numpy asks for huge pages is up to
NUMPY_MADVISE_HUGEPAGE.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from env_client import ArrayClient, SyncArrayClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

FIELD: Final = "routed_experts"
_RECEIVE_BYTES: Final = 4 * 2**20


def read_socket(port: int, into: memoryview) -> None:
    """Fill `into` from a connection to the port."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        offset = 0
        while offset < len(into):
            got = connection.recv_into(into[offset : offset + _RECEIVE_BYTES])
            if not got:
                raise EOFError(f"the socket ended after {offset} of {len(into)} bytes")
            offset += got


def read_once(array: NDArray[Any]) -> int:
    """Every byte of it, once, at the speed of memory."""
    flat = array.reshape(-1)
    words = flat[: len(flat) // 8 * 8].view(np.uint64)
    return int(np.bitwise_or.reduce(words))


def rounds(reference: dict[str, Any], port: int, count: int) -> dict[str, list[float]]:
    """Seconds of each way, a number for each round."""
    size = reference["arrays"][FIELD]["bytes"]
    buffer = np.empty(size, np.uint8)
    buffer.fill(1)  # its pages are there before anything is timed
    out = {FIELD: buffer.reshape(reference["arrays"][FIELD]["shape"])}
    seconds: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = call()
        seconds.setdefault(name, []).append(time.perf_counter() - began)
        return result

    with (
        SyncArrayClient(shared_memory=False) as streaming,
        SyncArrayClient() as mapping,
        asyncio.Runner() as runner,
    ):
        asynchronous = ArrayClient(shared_memory=False)

        async def fetch() -> Any:
            return await asynchronous.fetch(reference, [FIELD], out=out)

        heap = streaming.fetch(reference, [FIELD])[FIELD]
        for number in range(count + 1):
            timed("socket", lambda: read_socket(port, memoryview(buffer)))
            timed("stream", lambda: streaming.fetch(reference, [FIELD], out=out))
            if not np.array_equal(out[FIELD], heap):
                raise RuntimeError("the stream's bytes differ from one fetch to the next")
            timed("stream, async", lambda: runner.run(fetch()))
            mapped = timed("map and read", lambda: _mapped(mapping, reference))
            if not np.array_equal(mapped, heap):  # by the time it is compared, its pages are all there
                raise RuntimeError("the mapped bytes differ from those of the stream")
            timed("numpy.copy", lambda: np.copy(heap))
            again = timed("map alone", lambda: mapping.fetch(reference, [FIELD]))[FIELD]
            read_once(again)  # so that nobody enters its pages beside what is timed next
            del again
            if number == 0:
                seconds.clear()  # connections, and the machine's caches
        runner.run(asynchronous.close())
    return seconds


def _mapped(client: SyncArrayClient, reference: dict[str, Any]) -> NDArray[Any]:
    array = client.fetch(reference, [FIELD])[FIELD]
    read_once(array)
    return array


def main() -> None:
    """Read the arguments and run."""
    port, count = map(int, sys.argv[1:])
    print(json.dumps(rounds(json.load(sys.stdin), port, count)), flush=True)


if __name__ == "__main__":
    main()
