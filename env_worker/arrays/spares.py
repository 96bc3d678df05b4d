"""Files of segments that are gone, for the next ones: pages that are there need no kernel to make them."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from env_worker.arrays.budget import Room
from env_worker.arrays.forks import close_unshared, is_unshared

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_T = TypeVar("_T")

MAX_FILES: Final = 16
"""A worker keeps a few episodes at a time; what comes back in larger batches is taken no sooner."""
MAX_BYTES: Final = 2**28
"""A worker that has nothing to do has so much for a few seconds."""
LEAST_BYTES: Final = 2**20
"""To make the pages of a smaller file costs less than a descriptor is worth."""
IDLE_SECONDS: Final = 3.0
"""One that nobody has taken for so long is given back to the system."""
_MOST_UNLIKE: Final = 2
"""A file that is so many times as large, or as small, saves less than cutting or growing it costs."""
_FUTURE_WRITE: Final = 16
"""F_SEAL_FUTURE_WRITE, which Python has not named in 3.11."""


class _Spare(NamedTuple):
    fd: int
    size: int
    since: float


class _Process:
    """The spare files of this process. A child that is forked has none, whoever had the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.files: Final[list[_Spare]] = []
        """The latest one last."""
        self.freed = 0
        """Goes up when one was closed or cut."""

    def begin_anew(self) -> None:
        self.lock = threading.Lock()
        self.files.clear()


_HERE: Final = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_HERE.begin_anew)


class Spares:
    """Files in memory that no other process was ever offered, of which the next segments are made. They give
    way to whatever is held: `room` is never exceeded, and nobody is refused any for their sake. Thread-safe.

    All stores of the process have the same ones, which hold nothing of anybody's any more: so there are no
    more of them where there are more stores, and each gets all of them where the system is short. They fit
    into the room of whichever store has last added to them, or kept something.

    A file is closed, or cut, under the lock: so what counts no more is really free.

    Args:
        room: bytes in memory, and descriptors, that are neither held nor promised to a segment.
        clock: monotonic seconds.
    """

    def __init__(self, room: Callable[[], Room], clock: Callable[[], float] = time.monotonic) -> None:
        self._room: Final = room
        self._clock: Final = clock
        self._closed = False

    @property
    def taken(self) -> Room:
        """What they take."""
        with _HERE.lock:
            return _taken()

    def add(self, fd: int, size: int) -> None:
        """Keep a file of `size` bytes of memory, which still count as held, or close it."""
        with _HERE.lock:
            files, there = _taken(), self._room()
            kept = (
                not self._closed
                and is_unshared(fd)
                and LEAST_BYTES <= size <= MAX_BYTES - files.bytes
                and files.segments < MAX_FILES
                and files.bytes <= there.bytes
                and files.segments <= there.segments
            )
            if kept:
                _HERE.files.append(_Spare(fd, size, self._clock()))
        if not kept:
            close_unshared(fd)

    def take(self, size: int) -> int | None:
        """A file of exactly `size` bytes of whatever, for a segment that has room for so many; None if none
        is like it. What is left fits beside all that is held."""
        with _HERE.lock:
            like = [spare for spare in _HERE.files if _alike(spare.size, size)]
            # Of those that are as like as each other the latest, so that what is not needed gets old.
            spare = min(reversed(like), key=lambda spare: abs(spare.size - size), default=None)
            fd = None
            if spare is not None:
                _HERE.files.remove(spare)
                fd = _resized(spare.fd, size)
                _HERE.freed += fd is None or size < spare.size
            self._give_way()
            return fd

    def give_way(self) -> None:
        """Before anything else is made: free what does not fit beside all that is held."""
        with _HERE.lock:
            self._give_way()

    def relieved(self, attempt: Callable[[], _T], short: Collection[int]) -> _T:
        """What `attempt` returns. Where it raises an OSError of these numbers, as the system is short of
        something, all are freed, and it is called again.

        It fails only if none was freed since it began, by whomever: others, who were refused at the same
        moment, may have freed them all, and it cannot know whether before or after its own refusal.
        """
        while True:
            freed = _HERE.freed
            try:
                return attempt()
            except OSError as error:
                if error.errno not in short:
                    raise
                self.clear()
                if _HERE.freed == freed:
                    raise

    def clear(self) -> None:
        """Free all."""
        with _HERE.lock:
            while _HERE.files:
                _free_oldest()

    def expire(self) -> None:
        """Free those that nobody has taken for a while."""
        latest = self._clock() - IDLE_SECONDS
        while _free_older(latest):
            pass

    def close(self) -> None:
        """Free all, and add none from now on."""
        with _HERE.lock:
            self._closed = True
        self.clear()

    def _give_way(self) -> None:
        there = self._room()
        while _HERE.files and not _fits(_taken(), there):
            _free_oldest()


def _free_older(latest: float) -> bool:
    """One at a time: a keep that comes meanwhile waits for no more."""
    with _HERE.lock:
        old = bool(_HERE.files) and _HERE.files[0].since <= latest
        if old:
            _free_oldest()
        return old


def _free_oldest() -> None:
    close_unshared(_HERE.files.pop(0).fd)
    _HERE.freed += 1  # now that it is


def _taken() -> Room:
    return Room(sum(spare.size for spare in _HERE.files), len(_HERE.files))


def _fits(files: Room, there: Room) -> bool:
    return files.bytes <= there.bytes and files.segments <= there.segments


def _alike(size: int, wanted: int) -> bool:
    return size <= wanted * _MOST_UNLIKE and wanted <= size * _MOST_UNLIKE


def _resized(fd: int, size: int) -> int | None:
    """The same file of that size. None, and closed, if it is not ours alone: another process has frozen it,
    which it can only have opened by itself."""
    try:
        frozen = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & (frozen | _FUTURE_WRITE):
            os.ftruncate(fd, size)
            return fd
    except OSError:
        pass
    close_unshared(fd)
    return None
