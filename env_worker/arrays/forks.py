"""Descriptors that no forked child keeps: it would hold what its parent has freed, as long as it lives."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PATIENCE_SECONDS: Final = 1.0
"""A fork waits no longer: not for a disk that hangs, nor for a thread that it interrupted."""

_kept_back: Final[set[int]] = set()
_gate = threading.Condition()
"""A fork holds it."""
_changes = 0
"""Descriptors that are being opened or closed right now, so that the set does not tell the truth."""
_forks = 0
"""Forks that wait for those: no further change begins before them, or a fork would wait for ever."""


def open_unshared(opener: Callable[[], int]) -> int:
    """The descriptor that `opener` opens; a child that is forked from then on has it closed."""
    with _change():
        fd = opener()
        _kept_back.add(fd)
    return fd


def close_unshared(fd: int) -> None:
    """Close a descriptor of `open_unshared`. It is free again also where a disk refuses. In a child that was
    forked since, the number is another file's, which is left alone."""
    with _change(), contextlib.suppress(OSError):
        if is_unshared(fd):
            _kept_back.discard(fd)
            os.close(fd)


def is_unshared(fd: int) -> bool:
    """Whether it is a descriptor of `open_unshared`, and this process has opened it."""
    return fd in _kept_back


@contextlib.contextmanager
def _change() -> Iterator[None]:
    global _changes
    with _gate:
        _gate.wait_for(lambda: not _forks, _PATIENCE_SECONDS)
        _changes += 1
    try:
        yield
    finally:
        with _gate:
            _changes -= 1
            _gate.notify_all()


def _before_fork() -> None:
    global _forks
    _gate.acquire()
    _forks += 1
    _gate.wait_for(lambda: not _changes, _PATIENCE_SECONDS)


def _in_parent() -> None:
    global _forks
    _forks -= 1
    _gate.notify_all()
    _gate.release()


def _in_child() -> None:
    global _gate, _changes, _forks
    _gate, _changes, _forks = threading.Condition(), 0, 0
    while _kept_back:
        with contextlib.suppress(OSError):
            os.close(_kept_back.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
