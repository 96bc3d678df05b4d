"""Processes that carry a mark in their environment, found and killed. Standard library and psutil only."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

MARK_VARIABLE: Final = "ENVTRIO_HARNESS"
"""In the environment of all that a worker with verifiers environments starts: `MARK`, and of what a runtime
of one of its runs starts `MARK/RUN`."""
_ROUNDS: Final = 20
_PAUSE_SECONDS: Final = 0.05


def marked(mark: str, run: str = "") -> Callable[[psutil.Process], bool]:
    """Whether a process was started by the worker of that mark, or by that run of it."""
    whole, prefix = (f"{mark}/{run}", None) if run else (mark, f"{mark}/")

    def test(process: psutil.Process) -> bool:
        value = process.environ().get(MARK_VARIABLE, "")
        return value == whole or (prefix is not None and value.startswith(prefix))

    return test


def kill(wanted: Callable[[psutil.Process], bool]) -> list[str]:
    """Kill every process that is `wanted`, and what such a one starts meanwhile; what was killed, as
    "PID NAME". What is another user's is left alone, and so are this process and those above it. Takes some
    milliseconds per hundred processes of the host: call it in a thread.
    """
    killed: dict[int, str] = {}
    own = psutil.Process(os.getpid())
    spared = {own.pid, *(parent.pid for parent in own.parents())}
    for _ in range(_ROUNDS):
        found = False
        for process in psutil.process_iter():
            if process.pid in spared:
                continue
            try:
                if process.status() == psutil.STATUS_ZOMBIE or not wanted(process):
                    continue
                killed.setdefault(process.pid, f"{process.pid} {process.name()}")
                process.kill()
                found = True
            except (psutil.Error, OSError):
                continue  # it has ended by itself, or is somebody else's
        if not found:
            break
        time.sleep(_PAUSE_SECONDS)
    return list(killed.values())
