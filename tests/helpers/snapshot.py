"""What exists at one moment and should be gone later: child processes, tasks, threads, open files."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_OF_THE_LOOP = ("asyncio_", "asyncio-waitpid-")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Of this process and its descendants, by names that say what was left behind.

    Left out are the task that asks, and the threads that live as long as the event loop.
    """

    processes: frozenset[str]
    tasks: frozenset[str]
    threads: frozenset[str]
    files: Counter[str]

    @classmethod
    def take(cls) -> Snapshot:
        """The present. Tasks are those of the running event loop, if there is one."""
        try:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            tasks = {f"{task.get_name()} {task.get_coro()!r}" for task in others}
        except RuntimeError:
            tasks = set()
        return cls(
            processes=frozenset(f"{pid} {name}" for pid, name in descendants(os.getpid()).items()),
            tasks=frozenset(tasks),
            threads=frozenset(
                f"{thread.ident} {thread.name}"
                for thread in threading.enumerate()
                if not thread.name.startswith(_OF_THE_LOOP)
            ),
            files=open_files(os.getpid()),
        )


def descendants(pid: int) -> dict[int, str]:
    """Processes below `pid` that have not ended: pid -> command name. Zombies have ended."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (status := _status(int(entry.name))) is not None:
            name, state, parent = status
            if state not in "ZX":
                names[int(entry.name)] = name
                children.setdefault(parent, []).append(int(entry.name))
    found: dict[int, str] = {}
    queue = [pid]
    while queue:
        for child in children.get(queue.pop(), ()):
            found[child] = names[child]
            queue.append(child)
    return found


def alive(pid: int) -> bool:
    """True if `pid` is a process that has not ended. A zombie has."""
    status = _status(pid)
    return status is not None and status[1] not in "ZX"


def open_files(pid: int) -> Counter[str]:
    """What the open file descriptors of `pid` point to, numbers of sockets and pipes left out, counted."""
    found: Counter[str] = Counter()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found[os.readlink(entry).split(":[")[0]] += 1
        except FileNotFoundError:  # the descriptor that lists the directory, or one closed meanwhile
            continue
    return found


def _status(pid: int) -> tuple[str, str, int] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    head, _, tail = text.rpartition(")")
    state, parent = tail.split()[:2]
    return head.partition("(")[2], state, int(parent)
