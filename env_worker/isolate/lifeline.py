"""Ends an environment's process, and what it has started, when its worker ends, however that ends."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import sys
import threading
from typing import Final

_PR_SET_PDEATHSIG: Final = 1

LAST_WORDS: Final = "this environment's process ends itself: "
"""What `end_group` writes in front of its reason."""


_held: Final[set[int]] = set()
"""The writing ends in this process."""
_holding: Final = threading.Lock()


def new() -> tuple[int, int]:
    """A pipe for a process to hold on to, its reading and its writing end. For its worker, which lets go by
    `let_go`, or by its own end: a child that it forks has no copy."""
    with _holding:
        reading, writing = os.pipe()
        _held.add(writing)
    return reading, writing


def let_go(writing: int) -> None:
    """Close the writing end."""
    with _holding:
        _held.discard(writing)
        os.close(writing)


def _after_fork_in_child() -> None:
    for writing in _held:
        os.close(writing)
    _held.clear()
    _holding.release()


os.register_at_fork(
    before=_holding.acquire, after_in_parent=_holding.release, after_in_child=_after_fork_in_child
)


def hold_on(lifeline: int) -> None:
    """Tie this process's group to the pipe whose reading end is `lifeline`: when its writing end closes, the
    whole group is killed. For the leader of a group of its own.

    On Linux the kernel does it, also while code here holds the interpreter. Elsewhere it takes a thread that
    reads from the worker; see `end_group`.
    """
    if sys.platform == "linux":
        try:
            # The kernel's own note of the end of the pipe, sent as a signal that needs no handler.
            fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
        except OSError:  # not every sandbox's kernel knows it; this one misses what the process has started
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([lifeline], [], [], 0)[0]:
        end_group("its worker is gone")


def end_group(reason: str) -> None:
    """Kill this process and what it has started; the reason goes to its last lines."""
    with contextlib.suppress(OSError):
        os.write(2, f"{LAST_WORDS}{reason}\n".encode())
    os.killpg(os.getpgrp(), signal.SIGKILL)


def be_killed_first() -> None:
    """Where memory runs out, have this process killed instead of its worker."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("800")
