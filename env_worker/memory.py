"""How much memory this process may use."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

_CGROUPS: Final = Path("/sys/fs/cgroup")
_MEMBERSHIP: Final = Path("/proc/self/cgroup")
_LIMITS: Final = ("memory.max", "memory.high", "memory.limit_in_bytes")
"""Of version 2, twice, and of version 1."""


def usable_memory_bytes(cgroups: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int:
    """The machine's memory, or the lowest limit of the control groups that this process is in, whatever is
    less. Both versions of control groups; where there are none, there is no limit.

    Args:
        cgroups: where their file systems are mounted.
        membership: the list of those of this process.
    """
    return min((int(psutil.virtual_memory().total), *_limits(cgroups, membership)))


def _limits(cgroups: Path, membership: Path) -> Iterator[int]:
    for folder in _folders(cgroups, membership):
        for name in _LIMITS:
            try:
                text = (folder / name).read_text().strip()
            except OSError:
                continue  # of the other version, or not to be seen from this container
            if text.isascii() and text.isdigit():  # else "max"
                yield int(text)


def _folders(cgroups: Path, membership: Path) -> Iterator[Path]:
    """Its own groups and all above them: the limit of each holds. In a container its own may be the root."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    for line in ("0::/", *lines):
        _, _, group = line.split(":", 2)
        path = PurePosixPath(group)
        for above in (path, *path.parents):
            inside = str(above).lstrip("/")
            yield cgroups / inside
            yield cgroups / "memory" / inside  # where version 1 has its memory controller
