"""The bytes of a response's body, unpacked in small steps: some kilobytes of gzip hold a gigabyte."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

CODINGS: Final = frozenset({"", "identity", "gzip", "x-gzip", "deflate"})
"""Those that are taken. None is asked for."""
STEP_BYTES: Final = 64 * 1024
"""Most of what is unpacked at once."""

_ZLIB, _GZIP, _BARE = zlib.MAX_WBITS, 16 + zlib.MAX_WBITS, -zlib.MAX_WBITS
_HEADER_BYTES: Final = 2


class Unpacker:
    """Unpacks one body.

    Args:
        coding: one of CODINGS.
    """

    def __init__(self, coding: str) -> None:
        self._begin = b""
        """Of a deflated body, until it is known how."""
        self._stream = zlib.decompressobj(_GZIP) if coding in ("gzip", "x-gzip") else None
        self.step: Final = 0 if coding in ("", "identity") else STEP_BYTES
        """Bytes that it may make of what has come, before anybody knows; none of what is not packed."""

    @property
    def whole(self) -> bool:
        """Whether nothing more is to come, as far as what has come tells."""
        return self._stream.eof if self._stream is not None else not self._begin

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What `data` unpacks to, each piece made when it is asked for. Nothing behind the end of what is
        packed. zlib.error if it is not packed so."""
        if not self.step:
            yield data
            return
        if self._stream is None:
            self._begin += data
            if len(self._begin) < _HEADER_BYTES:
                return
            data, self._begin = self._begin, b""
            self._stream = zlib.decompressobj(_ZLIB if _has_header(data) else _BARE)
        while data and not self._stream.eof:
            piece = self._stream.decompress(data, STEP_BYTES)
            data = self._stream.unconsumed_tail
            if piece:
                yield piece
        while not self._stream.eof and (piece := self._stream.decompress(b"", STEP_BYTES)):
            yield piece


def _has_header(data: bytes) -> bool:
    """Whether that is zlib's, with which deflated bodies should begin, and some do not."""
    return data[0] & 0x0F == zlib.DEFLATED and int.from_bytes(data[:_HEADER_BYTES]) % 31 == 0
