"""Ends what a worker's environments have started, when the worker ends."""

from __future__ import annotations

import logging
import os
import secrets
import time
from typing import Final

import psutil

logger = logging.getLogger(__name__)

MARK_VARIABLE: Final = "ENVTRIO_WORKER_PROCESS"
"""In the environment of everything that a worker starts: its mark, by which it is found again."""
SECONDS: Final = 2.0
"""Time for all of it."""
_NAMED: Final = 10


class Leftovers:
    """The processes that this one, its children and theirs have started and that still live."""

    def __init__(self) -> None:
        self._mark = ""

    def mark(self, *, inherited: bool) -> None:
        """Mark what this process starts from now on.

        A worker that a broker started has a mark already (`inherited`), by which the broker finds what is
        left after its death. Any other takes one of its own: what it finds in its environment belongs to a
        worker whose environment started it, and whose other processes are none of its business.
        """
        if not (inherited and os.environ.get(MARK_VARIABLE)):
            os.environ[MARK_VARIABLE] = secrets.token_hex(16)
        self._mark = os.environ[MARK_VARIABLE]

    def end(self, *, seconds: float = SECONDS) -> list[str]:
        """Kill this process's descendants, and whoever carries its mark, also in a session of its own or with
        a parent that has gone; what was killed, as "name pid", which is in the log too. Nothing if `mark` was
        not called.

        Not found is what was forked without an exec by a parent that has gone, where no broker set the mark:
        the system shows it with the environment that the worker itself was started with.
        """
        killed: dict[int, str] = {}
        deadline = time.monotonic() + seconds
        while self._mark and (found := _living(self._mark)):
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


def _living(mark: str) -> list[psutil.Process]:
    own = psutil.Process()
    spared = {own.pid, *(parent.pid for parent in own.parents())}
    found = {child.pid: child for child in own.children(recursive=True)}
    for process in psutil.process_iter():
        if process.pid not in found and process.pid not in spared and _carries(process, mark):
            found[process.pid] = process
    return [process for process in found.values() if _ends_only_by_force(process)]


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
        return "resource_tracker" not in " ".join(process.cmdline())
    except psutil.Error:
        return False
