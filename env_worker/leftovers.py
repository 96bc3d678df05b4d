"""Ends what a worker's environments have started, when the worker ends."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import re
import secrets
import sys
import time
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

MARK_VARIABLE: Final = "ENVTRIO_WORKER_PROCESS"
"""In the environment of everything that a worker starts: its mark, by which it is found again."""
SECONDS: Final = 2.0
"""Time for all of it."""
_NAMED: Final = 10
_PR_GET_CHILD_SUBREAPER: Final = 37
_RESOURCE_TRACKER: Final = re.compile(r"from multiprocessing\.resource_tracker import main; ?main\(\d+\)")


class Leftovers:
    """The processes that this one, its children and theirs have started and that still live."""

    def __init__(self) -> None:
        self._mark = ""
        self._earlier: frozenset[psutil.Process] = frozenset()
        """What was there already: a script may start something before it becomes the worker by exec."""

    def mark(self, *, inherited: bool) -> None:
        """Mark what this process starts from now on, and end it when the interpreter ends: after all that is
        registered with atexit from now on, and after the executors, whose processes may be a hook's.

        A worker that a broker started has a mark already (`inherited`), by which the broker finds what is
        left after its death. Any other takes one of its own: what it finds in its environment belongs to a
        worker whose environment started it, and whose other processes are none of its business.
        """
        if not (inherited and os.environ.get(MARK_VARIABLE)):
            os.environ[MARK_VARIABLE] = secrets.token_hex(16)
        self._earlier = frozenset(psutil.Process().children(recursive=True))
        self._mark = os.environ[MARK_VARIABLE]
        atexit.register(self._at_exit, os.getpid())

    def end(self, *, seconds: float = SECONDS) -> list[str]:
        """Kill this process's descendants, and whoever carries its mark, also in a session of its own or with
        a parent that has gone; what was killed, as "name pid", which is in the log too. Nothing if `mark` was
        not called. What was there before is spared, and what that has started.

        Not found is what was forked without an exec by a parent that has gone, where no broker set the mark:
        the system shows it with the environment that the worker itself was started with. Nor, where orphans
        come to this process, as to the first of a container, what was started without the mark: it may be
        anybody's.
        """
        killed: dict[int, str] = {}
        deadline = time.monotonic() + seconds
        while self._mark and (found := self._living()):
            for process in found:
                try:
                    name = process.name()
                    process.kill()
                except psutil.Error:
                    continue  # it has ended by itself, or is somebody else's
                killed[process.pid] = f"{name} {process.pid}"
            if (left := deadline - time.monotonic()) <= 0:
                break
            psutil.wait_procs(found, timeout=min(left, 0.2))
            # Again: what they started while they were looked for.
        if names := list(killed.values()):
            shown = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
            logger.warning("%d processes that environments left behind were killed: %s", len(names), shown)
        return list(killed.values())

    def _at_exit(self, pid: int) -> None:
        if os.getpid() == pid:  # not in a child that was forked
            self.end()

    def _living(self) -> list[psutil.Process]:
        own = psutil.Process()
        found = {process.pid: process for process in self._started_by(own)}
        spared = {own, *own.parents(), *self._earlier}
        for process in psutil.process_iter():
            if process.pid not in found and process not in spared and _carries(process, self._mark):
                found[process.pid] = process
        return [process for process in found.values() if _ends_only_by_force(process)]

    def _started_by(self, own: psutil.Process) -> Iterator[psutil.Process]:
        """The descendants, without those that were there before, or came as orphans, and theirs."""
        adopts, ours = _adopts_orphans(), {own.pid}
        for process in own.children(recursive=True):  # parents come before their children
            try:
                parent = process.ppid()
                if process in self._earlier or parent not in ours:
                    continue
                if (
                    adopts
                    and parent == own.pid
                    and not (
                        _carries(process, self._mark)
                        or process.cmdline() == own.cmdline()  # forked from here
                    )
                ):
                    continue
            except psutil.Error:
                continue
            ours.add(process.pid)
            yield process


def _adopts_orphans() -> bool:
    """Whether processes whose parent has gone become children of this one."""
    if os.getpid() == 1 or sys.platform != "linux":
        return os.getpid() == 1
    adopts = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts))
    return bool(adopts)


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK_VARIABLE) == mark
    except (psutil.Error, OSError):
        return False  # it has ended, or is another user's


def _ends_only_by_force(process: psutil.Process) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        # It frees the shared memory that this process leaves, and ends with it.
        return not any(map(_RESOURCE_TRACKER.fullmatch, process.cmdline()))
    except psutil.Error:
        return False
