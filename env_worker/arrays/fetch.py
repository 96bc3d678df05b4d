"""One fetch: a part of a branch that stays readable until the fetch ends."""

from __future__ import annotations

import os
import threading
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from env_worker.arrays.cut import Cut
    from env_worker.arrays.segment import Segment

PIECE_BYTES: Final = 2**20
_MANY_PARTS: Final = 64
"""Read one by one, they take 0.2 ms."""


class Fetch:
    """What was asked for, held until `close`: a release or discard meanwhile changes nothing. Thread-safe.

    Made by `ArrayStore.open`, which has the segment held for it; a context manager that closes.

    Args:
        on_end: called once, when it is closed and nothing is read any more.
        count: told bytes that were sent, and bytes that were offered to be mapped.
    """

    def __init__(
        self,
        segment: Segment,
        cut: Cut,
        token_start: int,
        token_end: int,
        *,
        on_end: Callable[[], None],
        count: Callable[[int, int], None],
    ) -> None:
        self.cut: Final = cut
        """The arrays, their body's length and checksum."""
        self.token_start: Final = token_start
        self.token_end: Final = token_end
        self.spilled: Final = segment.in_file
        """Whether reading may wait for a disk."""
        self.scattered: Final = is_scattered(cut)
        """Whether a piece of PIECE_BYTES may be made of so many parts that reading it takes milliseconds."""
        self._segment: Final = segment
        self._on_end: Final = on_end
        self._count: Final = count
        self._lock: Final = threading.Lock()
        self._closed = self._offered = False

    def __enter__(self) -> Fetch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes of the segment, from its `offset` on.

        ValueError if they are not in it, or the fetch is closed. OSError if a disk fails.
        """
        if self._closed:
            raise ValueError("the fetch is closed; open another")
        return self._segment.read(offset, length)

    def pieces(self, size: int = PIECE_BYTES) -> Iterator[bytes]:
        """The body in order, in pieces of `size` bytes, the last one shorter; none of an empty body.

        Counts each piece as sent when it is made. Errors as `read`.
        """
        if size < 1:
            raise ValueError(f"size is {size}, expected 1 or more bytes")
        parts: list[bytes] = []
        missing = size
        for array in self.cut.arrays:
            for offset, length in array.extents:
                end = offset + length
                while offset < end:
                    part = self.read(offset, min(missing, end - offset))
                    offset += len(part)
                    missing -= len(part)
                    parts.append(part)
                    if not missing:
                        yield self._piece(parts)
                        missing = size
        if parts:
            yield self._piece(parts)

    def offer(self) -> dict[str, str] | None:
        """Parameters of the transport "memfd", by which a process of this host and user maps the bytes; None
        where that cannot be. Counts the body as mapped, once."""
        if self._closed or (fd := self._segment.share()) is None:
            return None
        with self._lock:
            first, self._offered = not self._offered, True
        if first:
            self._count(0, self.cut.body_bytes)
        extents = (
            ",".join(f"{offset}+{length}" for offset, length in array.extents) for array in self.cut.arrays
        )
        return {
            "pid": str(os.getpid()),
            "fd": str(fd),
            "segment": self._segment.id,
            "size": str(self._segment.size),
            "extents": ";".join(extents),
        }

    def sent(self, size: int) -> None:
        """Count bytes that were read by `read` and sent."""
        self._count(size, 0)

    def close(self) -> None:
        """End the fetch. Again: changes nothing. What another thread reads right now is still read."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._on_end()

    def _piece(self, parts: list[bytes]) -> bytes:
        piece = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self.sent(len(piece))
        return piece


def is_scattered(cut: Cut) -> bool:
    """Whether more than `_MANY_PARTS` of its parts, one after the other, may be of the same piece."""
    ends = list(accumulate(length for array in cut.arrays for _, length in array.extents))
    following = ends[_MANY_PARTS:]
    return any(later - end < PIECE_BYTES for end, later in zip(ends, following, strict=False))
