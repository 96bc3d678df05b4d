"""What a fetch yields: which parts of a segment, end to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

Read: TypeAlias = "Callable[[int, int], bytes]"
"""`read(offset, length)`: that many bytes of a segment from `offset` on, counted from the segment's start."""


class Extent(NamedTuple):
    """Bytes of a segment, one after the other."""

    offset: int
    """From the segment's start, its header included."""
    length: int
    """At least 1."""


@dataclass(frozen=True, slots=True)
class CutArray:
    """One array of a range of tokens."""

    name: str
    dtype: str
    """Little-endian numpy dtype: "u1", "<u2", "<i4", "<f4"."""
    shape: tuple[int, ...]
    """In C order."""
    size_bytes: int
    extents: tuple[Extent, ...]
    """Its bytes in order, as few extents as there can be; none of an array without bytes."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Fields of one branch, or of a range of its tokens."""

    arrays: tuple[CutArray, ...]
    """In the order in which the fields were asked for."""
    body_bytes: int
    """All arrays end to end."""
    body_crc32c: int
    """CRC-32C of the body, 0 of an empty one."""
