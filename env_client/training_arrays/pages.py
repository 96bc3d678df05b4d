"""Memory of this process that is a worker's file."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import weakref
from typing import Final

_MAP_NORESERVE: Final = 0x4000
_MADV_POPULATE_READ: Final = 22  # Linux 5.14.

_MAX_MAPPINGS: Final = 4096
"""Linux lets a process have 65,530; the allocator and threads need theirs, and a fault of theirs is fatal."""

# Addresses. No count behind a lock: a mapping may end within any line of this thread, also one that has it.
_mapped: Final[set[int]] = set()


class Region:
    """Memory that is pages of a file, unmapped when nobody has this object any more.

    mmap.mmap would keep a descriptor open for each array, and a trainer holds thousands of them.

    Raises:
        OSError: the system, or this module, has no room for a mapping more.
    """

    def __init__(self, file: int, offset: int, length: int) -> None:
        if len(_mapped) >= _MAX_MAPPINGS:
            raise OSError(f"{_MAX_MAPPINGS} arrays are mapped already")
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        # Private: what the caller writes is the caller's alone. Not reserved: it is rarely written to at all.
        address = libc().mmap(None, length, protection, mmap.MAP_PRIVATE | _MAP_NORESERVE, file, offset)
        if address in (None, ctypes.c_void_p(-1).value):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self.address: Final[int] = address
        self.length: Final = length
        _mapped.add(address)
        # Not at the interpreter's end, when arrays may still be read.
        weakref.finalize(self, _unmap, address, length).atexit = False

    def enter(self, begin: int, length: int) -> None:
        """Have the kernel enter some pages ahead of their first reader. Older kernels than 5.14 do not."""
        # ctypes lets go of the interpreter meanwhile.
        libc().madvise(self.address + begin, min(length, self.length - begin), _MADV_POPULATE_READ)


class Pages:
    """What numpy makes arrays of: whoever has one of them, has this, and nobody else.

    Args:
        file: one that nobody can make shorter: who reads behind the end of a file is killed.
        offset: of the first page, in bytes.
        length: in bytes.

    Raises:
        OSError: as `Region`.
    """

    def __init__(self, file: int, offset: int, length: int) -> None:
        self.region: Final = Region(file, offset, length)
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (length,),
            "data": (self.region.address, False),
        }


def _unmap(address: int, length: int) -> None:
    _mapped.discard(address)  # First, since another thread may be given that address at once.
    libc().munmap(address, length)


@functools.cache
def libc() -> ctypes.CDLL:
    """The C library, with the calls that are made here."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64
    ]  # fmt: skip
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library
