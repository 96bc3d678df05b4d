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
_MEMBER: Final = b"\x1f\x8b"
"""What each member of a gzip body begins with: there may be several, one after the other (RFC 1952)."""


class Unpacker:
    """Unpacks one body.

    Args:
        coding: one of CODINGS.
    """

    def __init__(self, coding: str) -> None:
        self._gzip: Final = coding in ("gzip", "x-gzip")
        self._begin = b""
        """Of a deflated body, until it is known how; or what is behind a member, until it is known what."""
        self._stream = zlib.decompressobj(_GZIP) if self._gzip else None
        self._over = False
        """Whether what is packed has ended, and no member follows."""
        self.step: Final = 0 if coding in ("", "identity") else STEP_BYTES
        """Bytes that it may make of what has come, before anybody knows; none of what is not packed."""

    @property
    def whole(self) -> bool:
        """Whether nothing more is to come, as far as what has come tells."""
        return self._stream.eof if self._stream is not None else not self._begin

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What `data` unpacks to, each piece made when it is asked for, an empty one where a member ends.
        Nothing of what is behind the end of what is packed. zlib.error if it is not packed so."""
        if not self.step:
            yield data
            return
        while data and not self._over:
            stream = self._stream
            if stream is None or stream.eof:
                data, self._begin = self._begin + data, b""
                if len(data) < _HEADER_BYTES:
                    self._begin = data
                    return
                if stream is None:
                    bits = _ZLIB if _has_header(data) else _BARE
                elif self._gzip and data.startswith(_MEMBER):
                    bits = _GZIP
                else:
                    self._over = True
                    return
                stream = self._stream = zlib.decompressobj(bits)
            while data and not stream.eof:
                piece = stream.decompress(data, STEP_BYTES)
                data = stream.unconsumed_tail
                if piece:
                    yield piece
            while not stream.eof and (piece := stream.decompress(b"", STEP_BYTES)):
                yield piece
            if stream.eof:
                yield b""
                data = stream.unused_data


def _has_header(data: bytes) -> bool:
    """Whether that is zlib's, with which deflated bodies should begin, and some do not."""
    return data[0] & 0x0F == zlib.DEFLATED and int.from_bytes(data[:_HEADER_BYTES]) % 31 == 0
