"""What a local worker's environments have started, and left behind when their worker ended."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK_VARIABLE: Final = "ENVTRIO_WORKER_PROCESS"
"""In the environment of a worker and so of all that it starts; names the worker's process."""

_ROUNDS: Final = 10


def kill_leftovers(mark: str, group: int) -> list[str]:
    """Kill every process that carries the mark, or is in the process group of the worker that has ended.

    Those that appear meanwhile too, as what forks may fork while it is looked for. A process that was started
    with an environment of its own making and in a session of its own is not found. Takes some milliseconds
    per hundred processes of the host: call it in a thread.

    Returns what was killed, as "PID NAME". ValueError for a mark or a group that no worker has: group 0 is
    that of the kernel's threads and of others that this process shall not see.
    """
    if not mark or group <= 1:
        raise ValueError(f"mark {mark!r} and group {group} are not those of a worker; give its own")
    killed: dict[int, str] = {}
    for _ in range(_ROUNDS):
        found = list(_leftovers(mark, group))
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                killed[process.pid] = f"{process.pid} {process.name()}"
                process.kill()
        if not found:
            break
    return list(killed.values())


def stopped(pid: int) -> bool:
    """Whether that process is stopped, as by SIGSTOP or by a debugger. False where there is none."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def _leftovers(mark: str, group: int) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        # Gone, a zombie, or another user's: not ours to kill.
        with contextlib.suppress(psutil.Error, OSError):
            if (
                process.pid != os.getpid()
                and (os.getpgid(process.pid) == group or process.environ().get(MARK_VARIABLE) == mark)
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                yield process
