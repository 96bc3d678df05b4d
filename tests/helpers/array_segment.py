"""A worker's file with arrays, made by hand, and the offer to map it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from envtrio.v1.training_array_service_pb2 import TransportOffer
from numpy.testing import assert_array_equal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.helpers.scripted_arrays import Branch

SEGMENT: Final = "5" * 32
LARGE: Final = 300_000
"""Bytes that are mapped, and not copied."""


@dataclass
class Segment:
    """A worker's file. `parts` has the extents of each array."""

    fd: int
    size: int = 4096
    parts: list[list[tuple[int, int]]] = field(default_factory=list)

    def put(self, *pieces: bytes, gap: int = 0) -> None:
        """Add an array of these pieces; `gap` bytes between them."""
        extents = []
        for data in pieces:
            os.pwrite(self.fd, data, self.size)
            extents.append((self.size, len(data)))
            self.size += len(data) + gap
        self.parts.append(extents)

    def seal(self) -> None:
        """Nothing of it changes any more."""
        self.size = -(-self.size // 4096) * 4096
        os.ftruncate(self.fd, self.size)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)

    def offer(self, **changes: str) -> list[TransportOffer]:
        """As it stands in a descriptor."""
        extents = ";".join(",".join(f"{offset}+{size}" for offset, size in parts) for parts in self.parts)
        parameters = {
            "pid": str(os.getpid()),
            "fd": str(self.fd),
            "segment": SEGMENT,
            "size": str(self.size),
            "extents": extents,
            **changes,
        }
        return [TransportOffer(transport="memfd", parameters=parameters)]


def is_mapped(array: NDArray[Any]) -> bool:
    """Whether its memory is a mapping of a file."""
    address = array.ctypes.data
    with open("/proc/self/maps") as maps:
        for line in maps:
            begin, _, end = line.split()[0].partition("-")
            if int(begin, 16) <= address < int(end, 16):
                return line.split()[4] != "0"  # The file's inode.
    return False


def open_descriptors() -> list[int]:
    """Those of the file."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "memfd:test" in os.readlink(f"/proc/self/fd/{name}"):
                found.append(int(name))
    return found


def equal(found: dict[str, NDArray[Any]], branch: Branch) -> None:
    """Whether a fetch has brought all of a branch, in order and as promised."""
    assert list(found) == list(branch.arrays)
    for name, array in found.items():
        assert_array_equal(array, branch.arrays[name], strict=True)
        assert array.flags.c_contiguous
        assert array.flags.writeable
